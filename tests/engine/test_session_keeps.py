"""A backend that cannot keep all the rows it is asked to: what a session counts, shows and takes up again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from eagle3chat.engine.events import Finished, Prefill, Round
from eagle3chat.engine.pair import open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.scripted import ScriptedBackend
from eagle3chat.engine.session import Session

WARM = Sampling(temperature=1.0, seed=3)
LONG = "Tell me a story about the sea, and make it last for a while, please; " * 3


def say(text: str) -> Say:
    return Say((Message("user", text),), Controls(3, WARM), 20)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a window has passed over every kept row."""
    whole = ScriptedBackend.prefill

    def prefill(backend: ScriptedBackend, tokens: Sequence[int], keep: int) -> Iterator[int]:
        if keep:
            yield 0
        yield from whole(backend, tokens, 0)

    monkeypatch.setattr(ScriptedBackend, "prefill", prefill)


def session() -> Session:
    return Session(open_pair(PairOptions(backend="scripted")))


@pytest.mark.usefixtures("forgetful")
def test_what_was_not_kept_is_not_counted_as_reused() -> None:
    one = session()
    list(one.reply(say(LONG)))
    events = list(one.reply(say(LONG + "now")))
    steps = [event for event in events if isinstance(event, Prefill)]
    assert steps[0].reused > 50
    assert {step.reused for step in steps[1:]} == {0}
    assert [step.done for step in steps[1:]] == sorted(step.done for step in steps[1:])
    assert steps[1].done == 0
    finished = events[-1]
    assert isinstance(finished, Finished) and finished.usage.reused_tokens == 0
    assert next(e for e in events if isinstance(e, Round)).drafted  # the draft starts as after any prompt


@pytest.mark.usefixtures("forgetful")
def test_a_prefill_that_starts_again_can_be_cancelled() -> None:
    one = session()
    list(one.reply(say(LONG)))
    for event in one.reply(say(LONG + "now")):
        if isinstance(event, Prefill) and event.reused == 0:
            break  # whoever stops listening here leaves empty caches
    assert len(one.committed) == 1
    said = [e.text for e in one.reply(say(LONG + "now")) if isinstance(e, Round)]
    assert said == [e.text for e in session().reply(say(LONG + "now")) if isinstance(e, Round)]
