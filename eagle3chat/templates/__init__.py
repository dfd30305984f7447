"""Chat templates: from a conversation to the pieces of a prompt. One file per model family, and the loader.

A template keeps what a person wrote apart from its own text, so that the codec finds control tokens in the
template's text only. It knows no token ids but those of replies that it splices in, and no model.
"""

from eagle3chat.templates.base import Template
from eagle3chat.templates.loader import affix_template, known_templates, load_template

__all__ = ["Template", "affix_template", "known_templates", "load_template"]
