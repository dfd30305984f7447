"""A conversation as Markdown and as JSON, for other programs.

Markdown holds what was said as it was said: a reply's own Markdown is part of it. JSON holds the conversation as it
stands with every round, as `transcript_codec` writes its values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from eagle3chat.transcript_codec import Conversation, Reply, plain
from eagle3chat.transcript_line import Exchange, exchanges
from eagle3chat.transcript_list import title_of
from eagle3chat.ui.clean import clean_line
from eagle3chat.ui.figures import under_reply
from eagle3chat.ui.thinking import answer


def markdown(conversation: Conversation) -> str:
    """The exchanges that count, each message under a heading; thinking is left out."""
    return "\n\n".join(_sections(conversation)) + "\n"


def _sections(conversation: Conversation) -> Iterator[str]:
    found = exchanges(conversation)
    title = conversation.title or (title_of(found[0].said) if found else conversation.header.id)
    yield f"# {clean_line(title)}"
    pair = conversation.pair
    facts = [pair.model, pair.backend, pair.dtype, conversation.header.created[:16].replace("T", " ")]
    yield f"*{clean_line(' · '.join(fact for fact in facts if fact))}*"
    if conversation.system:
        yield f"## system\n\n{conversation.system}"
    for exchange in found:
        yield f"## you\n\n{exchange.said}"
        if exchange.reply is not None:
            yield f"## model\n\n{answer(exchange.reply).strip()}"
            yield f"*{_ending(exchange.reply)}*"


def _ending(reply: Reply) -> str:
    return clean_line(" · ".join(under_reply(reply.finished))) if reply.finished else "broken off"


def document(conversation: Conversation) -> str:
    """One JSON document; ASCII, indented by hand of the library."""
    return json.dumps(
        {
            "format": "eagle3chat conversation 1",
            "title": conversation.title,
            "header": plain(conversation.header),
            "pair": plain(conversation.pair),
            "controls": plain(conversation.controls),
            "setup": plain(conversation.setup),
            "system": conversation.system,
            "exchanges": [_exchange(exchange) for exchange in exchanges(conversation)],
        },
        indent=1,
    )


def _exchange(exchange: Exchange) -> dict[str, object]:
    return {"user": exchange.said, "chosen": exchange.chosen, "replies": [plain(r) for r in exchange.replies]}
