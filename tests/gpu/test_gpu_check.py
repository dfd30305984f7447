"""The device's script on a CPU: it runs, says what it skips, and fails when something is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import check
import exact
import pytest
import torch
from synthetic import SIZES, disturb, open_synthetic

from eagle3chat.engine.torch_cache import KvCache, SlidingCache
from eagle3chat.engine.torch_graphs import Graphs
from eagle3chat.engine.torch_rounds import Rounds
from eagle3chat.engine.torch_state import Outbox


def ran(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit status, and each check's part of the JSON line."""
    status = check.main(["--device", "cpu", "--size", "tiny", *more])
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["failed"] == bool(status)
    return status, {found["name"]: found for found in last["checks"]}


def test_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = ran(capsys)
    assert status == 0
    states = {name: part["status"] for name, part in found.items()}
    kernels = dict.fromkeys(("linear", "attention", "bandwidth"), "skipped")
    assert states == kernels | {"bundle": "skipped", "graphs": "passed", "waits": "passed", "pair": "measured"}
    assert {found[name]["why"] for name in kernels} == {"needs CUDA"}
    figures = found["graphs"]["figures"]
    assert 0 < figures["accepted"] < figures["drafted"] and figures["rounds"] > 90
    assert found["pair"]["figures"]["plain tok/s"] > 0 and 0 < found["pair"]["figures"]["first proposal right"] < 1


def test_what_is_wrong_exits_with_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "graphs", lambda device: ("they differ", {"rounds": 3}))

    def broken(device: str, size: object) -> tuple[str, dict[str, float | str]]:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(check, "pair", broken)
    status, found = ran(capsys)
    assert status == 1
    assert (found["graphs"]["status"], found["graphs"]["why"]) == ("failed", "they differ")
    assert found["pair"]["status"] == "failed" and "no such kernel" in found["pair"]["why"]
    assert found["waits"]["status"] == "passed"


def test_no_time_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = ran(capsys, "--minutes", "-1")
    assert status == 0 and {part["why"] for part in found.values()} == {
        "needs CUDA",
        "needs --bundle",
        "no time is left",
    }


def test_without_a_device(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert check.main([]) == 2
    assert "no CUDA device" in capsys.readouterr().out


def wrapped(owner: type, name: str, after: Callable[..., None]) -> Callable[..., Any]:
    """The method, and something after it."""
    original = getattr(owner, name)

    def changed(self: Any, *args: Any) -> Any:
        made = original(self, *args)
        after(self, *args)
        return made

    return changed


BUGS = {
    "a confirmed row is lost": (Rounds, "_verify", lambda self, *_: self.state.count.sub_(1).clamp_(min=1)),
    "the next anchor is another": (Rounds, "_verify", lambda self, *_: self.state.tokens[:1].add_(1)),
    "the target goes on too far": (Rounds, "_verify", lambda self, *_: self.state.target_rows.add_(1)),
    "the window's place is not told": (Rounds, "_say", lambda self, *_: self.state.shift.zero_()),
}


@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, after = BUGS[name]
    monkeypatch.setattr(exact, "logits_apart", lambda size, device: 0.0)
    monkeypatch.setattr(owner, method, wrapped(owner, method, after))
    outcome = check.judged(check.Check("graphs", "", lambda: exact.graphs("cpu")), late=False)
    assert outcome.status == "failed" and ("differ" in outcome.why or "IndexError" in outcome.why)


def test_wrong_logits_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask of a recorded pass lets a row see one more."""
    from eagle3chat.engine import torch_layers, torch_span

    original = torch_span.placed_mask
    monkeypatch.setattr(torch_layers, "placed_mask", lambda slots, *rest: original(slots + 1, *rest))
    assert exact.logits_apart(SIZES["tiny"], "cpu") > exact.NEAR


def test_rounds_that_are_not_recorded_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graphs, "get", lambda self, *_: None)
    assert "not recorded" in exact.graphs("cpu")[0]


def test_a_second_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outbox, "read", wrapped(Outbox, "read", lambda self, rows: self.data.sum().item()))
    assert "item" in exact.waits("cpu")[0]


def test_the_pair_of_thin_air() -> None:
    """Windows where there are to be some, and a disturbance that acts."""
    backend = open_synthetic(SIZES["windowed"], "cpu", "float32")
    assert {type(part) for part in backend._target.cache.parts} == {KvCache, SlidingCache}
    before = backend._target.layers[0].mlp.down.weight.clone()
    disturb(backend, 0.5)
    torch.testing.assert_close(backend._target.layers[0].mlp.down.weight, 0.5 * before)
