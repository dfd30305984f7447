"""Events cross a process border by their constructors, which must lose nothing."""

import pickle

import pytest

from eagle3chat.engine.events import Burst, Round, Token

OWN = Token(5, " word", None, 0.25)
ROUNDS = [
    Round(3, 41, 2, 0.8, (Token(7, "a", 0.5, 0.75), OWN), 1, OWN, "correction", (OWN,), "a word", 0.5),
    Round(0, 0, 0, 0.0, (), 0, None, None, (), "piece", 0.5, 0.25, 0.125, "why", Burst(4)),
]


@pytest.mark.parametrize("round_", ROUNDS)
def test_a_round_comes_back_whole(round_: Round) -> None:
    assert pickle.loads(pickle.dumps(round_, pickle.HIGHEST_PROTOCOL)) == round_


def test_a_round_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a dataclass with slots looks up every field by its name, on both sides of the pipe."""

    def slow(*_: object) -> None:
        raise AssertionError("by fields")

    for kind in (Round, Token):
        monkeypatch.setattr(kind, "__getstate__", slow)
        monkeypatch.setattr(kind, "__setstate__", slow)
    assert pickle.loads(pickle.dumps(ROUNDS, pickle.HIGHEST_PROTOCOL)) == ROUNDS
