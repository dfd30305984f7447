"""A short soak; `scripts/soak.py` is the long one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from eagle3chat.engine.session import Session

SCRIPT = Path(__file__).parents[2] / "scripts" / "soak.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module
    spec.loader.exec_module(module)
    return module


def test_a_short_soak() -> None:
    outcome = script().soak(14, 5)
    assert outcome.stopped and outcome.edits
    assert abs(outcome.growth) < 0.05  # of so few turns: the caches of tokens still fill


def test_a_soak_sees_caches_that_are_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    soak = script()
    ahead = property(lambda session: (*session._committed, 7))
    monkeypatch.setattr(Session, "committed", ahead)
    with pytest.raises(soak.SoakError, match="not the transcript"):
        soak.soak(2, 3)
