"""What a pair is asked about itself: rows of one pass beside passes of one, and other taps; with faults planted."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny import tiny_bundle
from toys import HOT, V, plain, toy_backend, toy_draft, toy_target

from eagle3chat.engine.backend import Verdict
from eagle3chat.engine.manifest import read_manifest, write_manifest
from eagle3chat.engine.pair_check import open_checked
from eagle3chat.engine.requests import PairOptions
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.scripted import ScriptedBackend, ScriptedDraft
from eagle3chat.engine.selfcheck import REPLY, Hits, Rows, Taps, compare_rows, first_hits, shifted

TEXT = tuple(i * 5 % V for i in range(12))


class Uneven(ScriptedBackend):
    """A pass of several rows adds `fault` to the logits of token 1."""

    fault, rows = 0.0, 1

    def __init__(self, **options: int) -> None:
        def target(context: Sequence[int]) -> Sequence[float]:
            row = list(toy_target(context))
            row[1] += self.fault * (self.rows > 1)
            return row

        super().__init__(target, toy_draft, HOT, vocab_size=V, **options)

    def verify(self, draft: ScriptedDraft, sampling: Sampling) -> Verdict:
        self.rows = draft.chain + 1
        return super().verify(draft, sampling)


def test_rows_that_keep_their_numbers() -> None:
    rows = compare_rows(toy_backend(), TEXT, exact=True)
    assert rows == Rows(4, 4, 0.0, True, 0)
    assert rows.warning == ""
    assert str(rows).endswith("probabilities at most 0.0e+00 apart, the same choice in 4 of 4")


@pytest.mark.parametrize(("fault", "exact", "warned"), [(0.02, True, True), (0.02, False, False), (6.0, False, True)])
def test_rows_that_do_not(fault: float, exact: bool, warned: bool) -> None:
    backend = Uneven()
    backend.fault = fault
    rows = compare_rows(backend, TEXT, exact=exact)
    assert rows is not None
    assert rows.difference > 0.0001
    assert rows.warning.startswith("Speculation may change the text: a pass of 4 rows") == warned
    assert (rows.agreed < 4) == (fault > 1)


def test_numbers_that_are_none_are_far_apart() -> None:
    backend = Uneven()
    backend.fault = float("nan")
    rows = compare_rows(backend, TEXT, exact=False)
    assert rows is not None and rows.warning


def test_rows_are_compared_only_where_there_is_something_to_compare() -> None:
    assert compare_rows(toy_backend(None), TEXT, exact=True) is None
    assert compare_rows(toy_backend(capacity=5), TEXT, exact=True) is None
    assert compare_rows(toy_backend(), TEXT[:1], exact=True) is None
    assert compare_rows(toy_backend(), TEXT, exact=True, seconds=0.0) is None
    two = compare_rows(toy_backend(max_chain=1, capacity=6), TEXT, exact=True)
    assert two is not None and two.count == 2


def test_first_proposals_are_judged_along_the_targets_own_reply() -> None:
    knows = ScriptedBackend(toy_target, toy_target, range(V), vocab_size=V)
    assert first_hits(knows, [TEXT, TEXT[:5]], ()) == (True,) * (2 * REPLY)
    right = first_hits(toy_backend(), [TEXT], ())
    reply = plain(TEXT, Sampling(), REPLY)
    wanted = []
    for place, token in enumerate(reply):
        row = toy_draft([*TEXT, *reply[:place]])
        wanted.append(HOT[row.index(max(row))] == token)
    assert right == tuple(wanted)
    assert 0 < sum(right) < REPLY


def test_first_proposals_end_at_a_stop_and_with_the_context() -> None:
    stop = plain(TEXT, Sampling(), 5)[4]
    first = plain(TEXT, Sampling(), REPLY).index(stop) + 1
    assert len(first_hits(toy_backend(), [TEXT], {stop})) == first
    assert len(first_hits(toy_backend(capacity=len(TEXT) + 3), [TEXT], ())) == 3
    assert len(first_hits(toy_backend(capacity=9), [TEXT, TEXT[:1]], ())) == 1
    assert first_hits(toy_backend(None), [TEXT], ()) == ()


def test_other_taps_are_better_only_when_chance_does_not_explain_it() -> None:
    named = Hits((2, 5), (False,) * 80 + (True,) * 16)
    clearly = Hits((3, 6), (True,) * 30 + (False,) * 66)
    hardly = Hits((1, 4), (True,) * 18 + (False,) * 78)
    assert Taps(named, (hardly,)).better is None and Taps(named, (hardly,)).warning == ""
    found = Taps(named, (hardly, clearly))
    assert found.better == clearly
    assert "0.17 from 2,5; 0.19 from 1,4; 0.31 from 3,6" in str(found)
    assert found.warning.endswith("Export the bundle again with --taps 3,6.")
    assert Taps(replace(named, right=()), (replace(clearly, right=()),)).better is None


def test_taps_are_moved_as_far_as_there_are_boundaries() -> None:
    assert shifted((1, 2, 3), 4) == [(0, 1, 2), (2, 3, 4)]
    assert shifted((0, 2, 4), 5) == [(1, 3, 5)]
    assert shifted((0, 4), 4) == []


KINDS = {"torch": ("torch",), "mlx": ("mlx", "mlx_lm")}


def options_of(kind: str, bundle: Path) -> PairOptions:
    """The bundle on a backend, to be checked."""
    for module in KINDS[kind]:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    return PairOptions(bundle=str(bundle), backend=kind, device="cpu", dtype="float32", check=True)


def named(bundle: Path, taps: tuple[int, ...]) -> Path:
    """The bundle with other taps in its manifest."""
    manifest = read_manifest(bundle)
    assert manifest.draft is not None
    write_manifest(bundle, replace(manifest, draft=replace(manifest.draft, taps=taps)))
    return bundle


@pytest.fixture
def picky(tmp_path: Path) -> Path:
    """A bundle whose draft takes no notice of a coordinate that is 0 in the embedding, and goes mad where it is not."""
    path = tiny_bundle(tmp_path, taps=(0, 2, 3), layers=4, agree=0.9, intermediate=48)
    file = path / "draft" / "model.safetensors"
    weights = load_file(file)
    weights["fc.weight"][:, 40] = 50.0 * np.random.default_rng(1).standard_normal(len(weights["fc.weight"]))
    save_file(weights, file)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_the_right_taps_pass(kind: str, picky: Path) -> None:
    pair = open_checked(options_of(kind, picky))
    pair.close()
    assert pair.info.warnings == ()
    assert "the same choice in 4 of 4" in pair.info.checks[0]
    assert re.search(r"by taps: 0\.[5-9]\d from 0,2,3; 0\.[0-4]\d from 1,3,4$", pair.info.checks[1])


@pytest.mark.parametrize("kind", KINDS)
def test_taps_that_are_one_off_are_told_with_the_figures(kind: str, picky: Path) -> None:
    pair = open_checked(options_of(kind, named(picky, (1, 3, 4))))
    pair.close()
    assert len(pair.info.warnings) == 1
    assert pair.info.warnings[0].startswith("The draft was made for other taps")
    assert pair.info.checks[1] in pair.info.warnings[0]
    assert pair.info.warnings[0].endswith("Export the bundle again with --taps 0,2,3.")


def test_a_small_pair_is_asked_at_load_and_says_nothing_when_all_is_well(tmp_path: Path) -> None:
    bundle = str(tiny_bundle(tmp_path, hidden=32, layers=2, taps=(0, 1, 2), intermediate=48))
    options = PairOptions(bundle=bundle, backend="torch", device="cpu", dtype="float32")
    pair = open_checked(options)
    assert (pair.info.checks, pair.info.warnings) == ((), ())
    pair.close()
    asked = open_checked(replace(options, check=True))
    assert len(asked.info.checks) == 1 and "the same choice in 4 of 4" in asked.info.checks[0]
    assert asked.info.warnings == ()
    asked.close()


def test_the_scripted_pair_is_asked_as_well() -> None:
    assert open_checked(PairOptions(backend="scripted")).info.checks == ()
    assert "4 of 4" in open_checked(PairOptions(backend="scripted", check=True)).info.checks[0]
