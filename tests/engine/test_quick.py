"""Values made the quick way are the same values."""

from __future__ import annotations

import dataclasses
import inspect
import pickle

import pytest

from eagle3chat.engine.quick import quick


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    id: int
    text: str
    p: float | None = None


@quick
@dataclasses.dataclass(frozen=True, slots=True)
class Quick:
    id: int
    text: str
    p: float | None = None


def test_made_as_before() -> None:
    assert Quick(1, "a") == Quick(id=1, text="a", p=None) != Quick(1, "a", 0.5)
    assert repr(Quick(1, text="a", p=0.5)) == "Quick(id=1, text='a', p=0.5)"
    assert hash(Quick(1, "a")) == hash(Plain(1, "a"))
    assert dataclasses.replace(Quick(1, "a"), p=0.25) == Quick(1, "a", 0.25)
    assert pickle.loads(pickle.dumps(Quick(1, "a", 0.5))) == Quick(1, "a", 0.5)
    assert list(inspect.signature(Quick).parameters) == list(inspect.signature(Plain).parameters)


def test_still_frozen_and_still_strict() -> None:
    value = Quick(1, "a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.id = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        Quick(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Quick(1, "a", other=2)  # type: ignore[call-arg]


def test_what_it_does_not_take() -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Made:
        parts: list[int] = dataclasses.field(default_factory=list)

    with pytest.raises(AssertionError):
        quick(Made)
