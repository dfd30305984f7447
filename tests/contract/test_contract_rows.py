"""A pass of several rows says what passes of one say, for every family on every backend."""

from __future__ import annotations

from contract_game import Bench, prompt_of

from eagle3chat.engine.selfcheck import compare_rows


def test_a_pass_of_several_rows_says_what_passes_of_one_say(bench: Bench, kind: str, family: str) -> None:
    rows = compare_rows(bench.open(kind, bench.bundle(family)).backend, prompt_of(8), exact=True)
    assert rows is not None
    assert (rows.count, rows.agreed, rows.warning) == (4, 4, "")
