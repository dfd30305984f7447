"""The parts of training without tensors: data, vocabulary, schedule, rounds, journal, needs, curves, display."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from eagle3chat.engine.config import DraftConfig, Rope, TargetConfig
from eagle3chat.engine.errors import TrainError
from eagle3chat.train.conversations import Conversation, Line, conversations, read_lines, split
from eagle3chat.train.display import Display, span
from eagle3chat.train.journal import Journal, Measurement, Update
from eagle3chat.train.needs import estimate
from eagle3chat.train.plot import draw
from eagle3chat.train.recipe import Recipe
from eagle3chat.train.rounds import Rounds, walk
from eagle3chat.train.vocabulary import choose, coverage


def talk(ids: tuple[int, ...], start: int, prompt: str = "p") -> Conversation:
    return Conversation(ids, start, 0.0, "", prompt)


# Data


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 has no prompt"),
        ('{"reply_ids": [1]}', "line 2 has no prompt"),
        ('{"prompt": "a", "reply_ids": [1, -1]}', "line 2: reply_ids"),
        ('{"prompt": "a", "reply_ids": [1.5]}', "line 2: reply_ids"),
        ('{"prompt": "a", "temperature": "hot"}', "line 2: temperature"),
        ('{"prompt": "a", "times": 0}', "line 2: times"),
        ('{"prompt": "a", "times": 1.5}', "line 2: times"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"prompt": "a"}\n' + line + "\n")
    with pytest.raises(TrainError, match=words):
        read_lines(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match=r"none\.jsonl cannot be read"):
        read_lines(tmp_path / "none.jsonl")


def test_lines_are_read_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(
        '{"prompt": "a", "reply_ids": [3, 2], "temperature": 1, "source": "self"}\n\n{"prompt": "b", "times": 3}\n'
    )
    assert read_lines(file) == [Line("a", (3, 2), 1.0, "self"), Line("b", times=3)]


def render(text: str) -> list[int]:
    return [1, 2, *text.encode()]


def test_conversations_are_whole_once_and_cut() -> None:
    lines = [
        Line("a", (5, 6)),
        Line("a", (5, 6)),
        Line("a", (5, 7), times=4),
        Line("b"),
        Line("c", tuple(range(3, 60))),
    ]
    found = conversations(lines, render, 300, 20)
    assert [c.ids for c in found] == [(1, 2, 97, 5, 6), (1, 2, 97, 5, 7), (1, 2, 99, *range(3, 20))]
    assert [c.start for c in found] == [3, 3, 3]
    assert [c.times for c in found] == [1, 4, 1]
    assert len({c.key for c in found}) == 3


def test_a_reply_of_another_target_is_refused() -> None:
    with pytest.raises(TrainError, match="has the token 300, and the target knows 300"):
        conversations([Line("a", (5, 300))], render, 300, 20)


def test_the_split_is_by_prompt_and_steady() -> None:
    many = [talk((1, 2, 3, i), 2, f"prompt {i // 2}") for i in range(2000)]
    learned, held_out = split(many, 0.1)
    assert len(learned) + len(held_out) == 2000
    assert 0.06 < len(held_out) / 2000 < 0.14
    assert not {c.prompt for c in learned} & {c.prompt for c in held_out}
    again = split([talk((9, 9, 9), 2, c.prompt.upper() + " ") for c in held_out], 0.1)
    assert not again[0]
    more, _ = split(many[:500], 0.1)
    assert more == [c for c in many[:500] if c in set(learned)]


def test_the_vocabulary_is_the_most_frequent_tokens() -> None:
    data = [talk((7, 7, 9, 9, 9, 4), 2), talk((7, 8, 9, 5), 2)]
    found = choose(data, 3, 20)
    assert found.target_ids == (4, 7, 9)  # 4, 5 and 8 come once each: the lowest
    assert found.coverage == pytest.approx(5 / 6)
    assert choose(data, 50, 20).target_ids == tuple(range(20))
    assert choose(data, 8, 20).target_ids == (0, 1, 2, 4, 5, 7, 8, 9)
    assert coverage((9,), []) == 0.0


# Schedule


def test_the_rate_rises_then_falls_to_nothing() -> None:
    recipe = Recipe(learning_rate=1e-3, warmup=0.1)
    shares = [i / 1000 for i in range(1001)]
    rates = [recipe.rate(share) for share in shares]
    assert 0 < rates[0] < 1e-4
    assert max(rates) == pytest.approx(1e-3)
    assert rates[100] == pytest.approx(1e-3)
    assert rates[550] == pytest.approx(0.5e-3)
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    assert all(a >= b for a, b in itertools.pairwise(rates[100:]))


@pytest.mark.parametrize("wrong", [{"depth": 0}, {"learning_rate": 0.0}, {"learning_rate": 2.0}, {"batch_tokens": 0}])
def test_a_recipe_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(TrainError):
        Recipe(**wrong)


def test_step_weights() -> None:
    assert Recipe(depth=3).weights == pytest.approx((1.0, 0.8, 0.64))


# Rounds


def test_walking_over_a_reply() -> None:
    #        reply token:  0      1      2      3      4
    hits = [[True, True, False, True, True], [True, False, True, True]]
    rounds = walk(hits, 5)
    # Round at 0: both accepted, token 2 is the bonus; round at 3: token 3 accepted, then 4.
    assert rounds == Rounds(5, 2, (2, 2), (2, 2))
    assert rounds.tau == 2.5
    assert walk([[False] * 4], 4) == Rounds(4, 4, (4,), (0,))


def test_what_a_limit_leaves_no_room_for_is_not_judged() -> None:
    hits = [[False] * 4, [True] * 3]
    assert walk(hits, 4, limit=4) == Rounds(4, 4, (3, 0), (0, 0))
    assert walk([[True] * 4, [True] * 3], 4, limit=4) == Rounds(4, 2, (1, 1), (1, 1))


def test_rounds_add_up() -> None:
    total = Rounds(5, 2, (2, 2), (2, 1)) + Rounds(4, 4, (4, 0), (0, 0))
    assert total == Rounds(9, 6, (6, 2), (2, 1))
    assert total.acceptance == pytest.approx((1 / 3, 0.5))
    assert Rounds.none(2).tau == 0.0
    assert Rounds.none(2).acceptance == (0.0, 0.0)


# Journal and curves


def update(number: int, loss: float = 2.0, share: float = 0.0) -> Update:
    return Update(number, 0, share, 1e-3, (loss, loss + 0.5), 1.0, 100, 0.5)


def test_the_journal_forgets_what_was_done_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "log.jsonl")
    measured = Measurement(2, 0.2, Rounds(9, 6, (6, 2), (2, 1)))
    for entry in (update(1), update(2), measured, update(3, 9.0), update(4, 9.0)):
        journal.add(entry)
    with journal.path.open("a") as file:
        file.write('{"what": "update", "num\n')  # cut off by a crash
    journal.add(update(3, 1.0))
    assert journal.read() == [update(1), update(2), measured, update(3, 1.0)]
    assert Journal(tmp_path / "none.jsonl").read() == []


def test_the_curves_are_a_document() -> None:
    entries = [update(i, 3.0 - i / 1000) for i in range(1, 1000)]
    rounds = [Rounds(20, 10 - i, (10, 5), (i, i)) for i in range(4)]
    entries += [Measurement(i * 300, 0.1, r) for i, r in enumerate(rounds)]
    root = ElementTree.fromstring(draw(entries, "A draft for <x> & y"))
    lines = [element for element in root.iter() if element.tag.endswith("polyline")]
    assert len(lines) == 4
    counts = [len(line.attrib["points"].split()) for line in lines]
    assert counts == [250, 250, 4, 4]  # groups of 4 of 999 updates; every measurement
    numbers = [float(n) for line in lines for p in line.attrib["points"].split() for n in p.split(",")]
    assert min(numbers) >= 0 and max(numbers) <= 860
    texts = " ".join(element.text or "" for element in root.iter())
    assert "A draft for <x> & y" in texts and "tau 2.857" in texts
    ElementTree.fromstring(draw([], "nothing"))


# Needs and display


def test_needs_grow_with_the_data() -> None:
    target = TargetConfig("llama", 49152, 576, 1536, 30, 9, 3, 64, 1e-5, Rope(), 8192, True)
    draft = DraftConfig(576, 1536, 9, 3, 64, 1e-5, Rope(), 12288, 576, (2, 15, 27))
    needs = estimate(target, draft, 800_000, 588_000, 3, 3e11)
    stored = 2 * 3 * 576 * 800_000 + (2 * 576 + 12) * 588_000
    assert stored < needs.disk_bytes < stored + 250e6
    assert needs.feature_seconds == pytest.approx((2 * 106.2e6 * 8e5 + 2 * 28.3e6 * 5.88e5) / 1.5e11, rel=0.01)
    more = estimate(target, draft, 1_600_000, 1_176_000, 3, 3e11)
    assert more.epoch_seconds == pytest.approx(2 * needs.epoch_seconds)
    assert "GiB on disk" in needs.text(8.0) and "an epoch every" in needs.text(None)


def test_too_little_room_is_told(tmp_path: Path) -> None:
    target = TargetConfig("llama", 1000, 64, 96, 4, 4, 2, 16, 1e-5, Rope(), 256, True)
    draft = DraftConfig(64, 96, 4, 2, 16, 1e-5, Rope(), 500, 64, (1, 2, 3))
    needs = estimate(target, draft, 10**13, 10**13, 3, 1e9)
    with pytest.raises(TrainError, match=r"GiB are free"):
        needs.check(tmp_path, 0)
    needs.check(tmp_path, needs.disk_bytes)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_display_tells_speed_and_time_left() -> None:
    now = [0.0]
    terminal = Terminal()
    display = Display(terminal, lambda: now[0])
    display.measurement(Measurement(0, 0.0, Rounds(9, 6, (6, 2), (2, 1))))
    for number in range(1, 5):
        now[0] += 30.0
        display.update(update(number, share=number / 10))
    last = terminal.getvalue().split("\r\x1b[K")[-1]
    assert last == "training  40%, update 4, loss 2.000, 200 tok/s, 3 min left; held out: tau 1.500, accepted 0.33 0.50"
    display.done()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_without_a_terminal_lines_are_few() -> None:
    now = [0.0]
    stream = io.StringIO()
    display = Display(stream, lambda: now[0])
    for number in range(1, 50):
        now[0] += 4.0
        display.update(update(number, share=number / 100))
    assert stream.getvalue().count("\n") == 4
    assert "\r" not in stream.getvalue()


def test_spans() -> None:
    assert [span(s) for s in (5, 59, 60, 3000, 3900, 7260)] == ["5 s", "59 s", "1 min", "50 min", "1 h 05", "2 h 01"]
    assert json.dumps(span(0)) == '"0 s"'
