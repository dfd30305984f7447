"""scripts/peer_check.py: what it reads of llama.cpp's log, and what it counts on both sides."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from eagle3chat.engine.pair import open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.engine.sampling import Sampling

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from peer_check import Drafted, ours, read_log, row, whole

LOG = """
1.03 D spec        draft:  - seq_id 0, draft candidate   0, pos   0:     49 (   0.307) 'A'
1.03 D spec        draft:  - seq_id 0, draft candidate   1, pos   0:    346 (   0.150) ' you'
1.03 D spec        draft:  - seq_id 0, draft candidate   0, pos   1:   2232 (   0.166) ' simple'
1.03 D spec        draft:  - seq_id 0, draft candidate   0, pos   2:   5646 (   0.431) '
'
1.04 D accepted 0/3 draft tokens, the last target token is: (4898)
1.05 D spec        draft:  - seq_id 0, draft candidate   0, pos   0:     30 (   0.410) '.'
1.05 D spec        draft:  - seq_id 0, draft candidate   0, pos   1:      2 (   0.649) '<|im_end|>'
1.05 D spec        draft:  - seq_id 0, draft candidate   0, pos   2:     28 (   0.299) ','
1.06 D accepted 1/2 draft tokens, the last target token is: (2)
1.08 I encoded   38 tokens in    0.663 seconds, speed:   57.329 t/s
1.08 I decoded   17 tokens in    4.883 seconds, speed:    3.481 t/s
1.08 I n_drafted = 5
1.08 I n_accept  = 1
"""


def test_a_log_is_read_round_by_round() -> None:
    reply = read_log(LOG)
    assert reply.rounds == (Drafted(0, (49, 2232, 5646), 0, (4898,)), Drafted(1, (30, 2), 1, (30, 2)))
    assert (reply.prompt_tokens, reply.printed, reply.tokens) == (38, (5, 1), (4898, 30, 2))


def test_a_log_without_rounds_is_told() -> None:
    with pytest.raises(SystemExit, match="said nothing of its rounds"):
        read_log("error: invalid argument")


def test_rounds_that_the_limit_shortens_do_not_count() -> None:
    reply = read_log(LOG)
    assert whole(reply, 3, 96) == [reply.rounds[0]]
    assert whole(reply, 3, 3) == []
    line, rate = row("name", [Drafted(0, (1, 2, 3), 2, (1, 2, 9)), Drafted(3, (4, 5, 6), 0, (7,))])
    assert rate == pytest.approx(1 / 3)
    assert line.split() == ["name", "2", "6", "2", "0.3333", "2.0000", "0.5000", "0.5000", "0.0000"]


def test_ours_are_the_rounds_of_a_reply() -> None:
    pair = open_pair(PairOptions(backend="scripted"))
    reply = ours(pair, Say((Message("user", "Hi"),), Controls(3, Sampling()), 20))
    assert len(reply.tokens) == 20 and reply.prompt_tokens > 0
    starts = [0]
    for one in reply.rounds:
        assert one.start == starts[-1] and one.tokens[: one.accepted] == one.drafted[: one.accepted]
        starts.append(one.start + len(one.tokens))
    assert 0 < sum(one.accepted for one in reply.rounds) < 20
    assert all(one.start + 3 < 20 for one in whole(reply, 3, 20))
