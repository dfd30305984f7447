"""The training loop: what an epoch holds; runs that end by the clock, also after they were cut off."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eagle3chat.train import torch_trainer
from eagle3chat.train.conversations import Conversation
from eagle3chat.train.recipe import Recipe
from eagle3chat.train.torch_trainer import DAY, Limit, Trainer, batches
from eagle3chat.train.torch_weights_file import Learned


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(time=lambda: now.at, monotonic=lambda: now.at, at=1e6)
    monkeypatch.setattr(torch_trainer, "time", now)
    return now


def trainer(directory: Path, limit: Limit) -> Trainer:
    learned: Any = Learned(None, {"fc.weight": torch.ones(2, 2)}, torch.arange(2))  # type: ignore[arg-type]
    head: Any = SimpleNamespace(embedding=torch.zeros(2, 2))
    nothing: Any = None
    made = Trainer(learned, head, nothing, nothing, [], Recipe(), limit, directory)
    made.close()
    return made


def test_a_run_of_minutes_has_them_all_after_a_break(tmp_path: Path, clock: SimpleNamespace) -> None:
    first = trainer(tmp_path, Limit(seconds=100.0))
    clock.at += 40.0
    assert first.share == pytest.approx(0.4)
    first.save()
    clock.at += 5000.0
    again = trainer(tmp_path, Limit(seconds=100.0))
    assert again.load()
    assert again.share == pytest.approx(0.4)
    clock.at += 30.0
    assert again.share == pytest.approx(0.7)
    again.save()
    clock.at += 5000.0
    third = trainer(tmp_path, Limit(seconds=100.0))
    assert third.load()
    clock.at += 31.0
    assert third.share == 1.0


def test_a_run_up_to_a_time_never_goes_back(tmp_path: Path, clock: SimpleNamespace) -> None:
    until = clock.at + 100.0
    first = trainer(tmp_path, Limit(until=until))
    clock.at += 40.0
    first.save()
    clock.at += 30.0
    again = trainer(tmp_path, Limit(until=until))
    assert again.load()
    assert again.share == pytest.approx(40.0 / 70.0)  # of the time that it has, the break left out
    clock.at = until
    assert again.share == 1.0


@pytest.mark.parametrize(("later", "share"), [(DAY, 1.0), (DAY + 3600.0, 40.0 / (40.0 + 3600.0 + DAY - 100.0))])
def test_a_time_that_passed_meanwhile_is_not_tomorrows(
    tmp_path: Path, clock: SimpleNamespace, later: float, share: float
) -> None:
    until = clock.at + 100.0
    first = trainer(tmp_path, Limit(until=until))
    clock.at += 40.0
    first.save()
    clock.at += 160.0
    again = trainer(tmp_path, Limit(until=until + later))  # what the same flag, or a later time, says now
    assert again.load()
    assert again.share == pytest.approx(share)


def test_an_epoch_has_a_conversation_as_often_as_it_says() -> None:
    talks = [Conversation((1, 2, 3, 4, 5 + i), 2, 0.0, "", str(i), times) for i, times in enumerate((1, 3, 2))]
    epoch = list(batches(talks, 0, 0, 6))  # two replies of three tokens
    assert [len(batch) for batch in epoch] == [2, 2, 2]
    assert [sum(c is talk for batch in epoch for c in batch) for talk in talks] == [1, 3, 2]
