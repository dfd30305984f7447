"""A prompt's token ids as a bundle's chat template has them, without opening the target. Knows no tensors."""

from __future__ import annotations

from collections.abc import Callable

from eagle3chat.engine.bundle import Bundle
from eagle3chat.engine.pair import choose_template, end_of_turn
from eagle3chat.engine.requests import Message, PairOptions
from eagle3chat.engine.text import Codec


def renderer(bundle: Bundle) -> Callable[[str], list[int]]:
    """A function from a user's text to the ids of the conversation that begins with it, up to the reply.

    Raises:
        Eagle3Error: The tokenizer or the template cannot be read.
    """
    manifest, options = bundle.manifest, PairOptions()
    codec = Codec.from_file(bundle.tokenizer_file)
    end = end_of_turn(options, manifest.stop_ids, codec)
    template = choose_template(options, manifest.template, bundle.path, end)

    def render(text: str) -> list[int]:
        return codec.encode(template.render((Message("user", text),)), manifest.bos_id)

    return render
