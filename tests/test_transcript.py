"""Transcripts: what is written is read back, whatever a crash left of it; one writer; failures do not end a chat."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import random
import resource
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3chat.engine.errors import TranscriptError
from eagle3chat.engine.events import Finished, Info, Round, Token, Usage
from eagle3chat.engine.requests import Controls, Message
from eagle3chat.engine.sampling import Sampling
from eagle3chat.transcript import Transcript, list_transcripts, load, to_messages
from eagle3chat.transcript_codec import Damaged, Note, Reply, Said, encode, pack_rounds, reply_ids, unpack_rounds

INFO = Info("m", "d", "llama", "torch", "cpu", "int4", "chatml", 64, 4, 3, "", ("<|im_end|>",), 1.5, 1000)
USAGE = Usage(9, 3, 7, 2, 4, 1, 1, (2, 2, 1), (2, 1, 1), (2, 2, 2), 0.25, 0.5, 0.3)
STOPPED = Finished("stop", "<|im_end|>", "", USAGE)
WORDS = ("a", " the", "\x1b[2J", "\u2028", "\ufffd", "漢", "👩‍🚀", "\x00", '"turn":9}\n', "\ud83d")


def some_round(index: int, rng: random.Random) -> Round:
    def token(drafted: bool) -> Token:
        return Token(rng.randrange(9999), rng.choice(WORDS), rng.random() if drafted else None, rng.random())

    drafted = tuple(token(True) for _ in range(rng.randrange(5)))
    accepted = rng.randint(0, len(drafted))
    own = token(False) if rng.random() < 0.9 or not drafted else None
    kind = None if own is None else "plain" if not drafted else "bonus" if accepted == len(drafted) else "correction"
    considered = tuple(token(False) for _ in range(rng.randrange(4)))
    split = (rng.random(), None) if rng.random() < 0.2 else (None, None)
    text = "".join(rng.choice(WORDS) for _ in range(3))
    heat = rng.choice([0.0, 0.8])
    return Round(
        index, 40 + index, 4, heat, drafted, accepted, own, kind, considered, text, rng.random(), split[0], split[1]
    )


def rounds(count: int, seed: int = 0) -> list[Round]:
    rng = random.Random(seed)
    return [some_round(i, rng) for i in range(count)]


def word_round(index: int, word: str) -> Round:
    return Round(index, 5 + index, 0, 0.0, (), 0, Token(100 + index, word, None, 1.0), "plain", (), word, 0.01)


STOP_ROUND = replace(word_round(1, ""), own=Token(2, "<|im_end|>", None, 1.0))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def chat(directory: Path, *texts: str, controls: Controls | None = None) -> Path:
    """A closed transcript of one user message and one reply for each text."""
    transcript = Transcript.create(directory)
    transcript.system("Be kind.")
    transcript.opened(INFO, controls or Controls())
    for text in texts:
        transcript.user(text)
        transcript.round(word_round(0, "yes"))
        transcript.round(STOP_ROUND)
        transcript.reply(STOPPED)
    transcript.close()
    return transcript.path


def test_everything_written_is_read_back(tmp_path: Path) -> None:
    controls = Controls(4, Sampling(0.8, 40, 0.95, 0.05, 2**64 - 1, 0.7, 1.1, 0.5, -0.25))
    written = rounds(300)
    transcript = Transcript.create(tmp_path)
    transcript.system("Be\nbrief. \ud800")
    transcript.opened(INFO, controls, "/models/m")
    transcript.user("Hi \x1b[31m[bold]")
    for r in written[:200]:
        transcript.round(r)
    transcript.reply(Finished("length", "", "tail", USAGE))
    transcript.settings(replace(controls, chain=0))
    transcript.user("More")
    transcript.round(replace(written[200], index=0))
    transcript.note("worker", "It died.")
    transcript.close()

    conversation = load(transcript.path)
    system, user, reply, more, partial, note = conversation.turns
    assert (system, user) == (replace(system, text="Be\nbrief. \ud800"), replace(user, text="Hi \x1b[31m[bold]"))
    assert isinstance(reply, Reply)
    assert reply.rounds == tuple(written[:200])
    assert reply.text == "".join(r.text for r in written[:200]) + "tail"
    assert reply.token_ids == tuple(t.id for r in written[:200] for t in r.tokens)
    assert (reply.finished, reply.controls) == (Finished("length", "", "tail", USAGE), controls)
    assert isinstance(more, Said) and more.text == "More"
    assert isinstance(partial, Reply) and partial.finished is None and partial.controls.chain == 0
    assert isinstance(note, Note) and (note.kind, note.text) == ("worker", "It died.")
    header = conversation.header
    assert (header.id, header.controls, header.pair.bundle) == (transcript.id, controls, "/models/m")
    assert (header.pair.model, header.pair.draft, header.pair.dtype) == ("m", "d", "int4")
    assert conversation.controls == replace(controls, chain=0)
    assert conversation.skipped == 0


def test_a_file_of_a_time_without_penalties(tmp_path: Path) -> None:
    path = chat(tmp_path, "Hi", controls=Controls(2, Sampling(0.5, seed=9)))
    text = path.read_text()
    older = text.replace(',"repetition":1.0,"presence":0.0,"frequency":0.0', "")
    assert older != text
    path.write_text(older)
    assert load(path).controls == Controls(2, Sampling(0.5, seed=9))
    assert load(path).skipped == 0


def test_the_file_is_ascii_without_control_codes(tmp_path: Path) -> None:
    path = chat(tmp_path, "\x1b]0;title\x07 \x9b 漢 \x7f")
    assert all(byte == 10 or 32 <= byte < 127 for byte in path.read_bytes())


def test_nothing_is_on_disk_before_the_first_user_message(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "transcripts"
    with_settings = Transcript.create(directory)
    with_settings.system("s")
    with_settings.opened(INFO, Controls(2))
    with_settings.settings(Controls(1))
    with_settings.note("x", "y")
    with_settings.close()
    assert not directory.exists()


def test_the_user_message_is_on_disk_before_anything_is_generated_and_private(tmp_path: Path) -> None:
    directory = tmp_path / "transcripts"
    old = os.umask(0)
    try:
        transcript = Transcript.create(directory)
        transcript.user("Hello")
    finally:
        os.umask(old)
    assert [t.text for t in load(transcript.path).turns if isinstance(t, Said)] == ["Hello"]
    assert stat.S_IMODE(transcript.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    transcript.close()


def test_rounds_are_written_once_a_second(tmp_path: Path) -> None:
    clock = Clock()
    transcript = Transcript.create(tmp_path, clock=clock)
    transcript.user("Hi")
    sizes = []
    for r in rounds(40):
        clock.now += 0.1
        transcript.round(r)
        sizes.append(transcript.path.stat().st_size)
    grown = [i for i, (a, b) in enumerate(zip([0, *sizes], sizes, strict=False)) if i and b > a]
    assert len(grown) in (3, 4)
    assert {b - a for a, b in itertools.pairwise(grown)} == {10}
    assert len(load(transcript.path).turns[-1].rounds) < 40  # type: ignore[union-attr]
    transcript.flush()
    assert load(transcript.path).turns[-1].rounds == tuple(rounds(40))  # type: ignore[union-attr]
    transcript.close()


def test_the_disk_is_waited_for_at_the_end_of_a_turn_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    transcript = Transcript.create(tmp_path)
    transcript.user("Hi")
    assert synced == [tmp_path.stat().st_ino], "the directory, once, so that the new file's name is kept"
    for r in rounds(9):
        transcript.round(r)
    transcript.flush()
    transcript.user("More")
    assert len(synced) == 1
    transcript.reply(STOPPED)
    assert synced[1:] == [transcript.path.stat().st_ino]
    transcript.close()


def test_a_message_answered_anew_makes_two_replies(tmp_path: Path) -> None:
    transcript = Transcript.create(tmp_path)
    transcript.opened(INFO, Controls())
    transcript.user("Hi")
    transcript.round(word_round(0, "Wel"))
    transcript.round(word_round(1, "come"))
    transcript.note("worker", "killed")
    transcript.round(word_round(0, "Good"))
    transcript.round(word_round(1, " day"))
    transcript.reply(Finished("length", "", "", USAGE))
    transcript.close()
    conversation = load(transcript.path)
    assert [getattr(t, "text", "") for t in conversation.turns] == ["Hi", "Welcome", "killed", "Good day"]
    assert to_messages(conversation, INFO) == (Message("user", "Hi"), Message("assistant", "Good day", (100, 101)))


def test_a_partial_reply_does_not_run_into_the_next(tmp_path: Path) -> None:
    transcript = Transcript.create(tmp_path)
    transcript.user("One")
    transcript.round(word_round(0, "Wel"))
    transcript.user("Two")
    transcript.reply(Finished("cancelled", "", "", USAGE))  # while the prompt was read: no rounds
    transcript.close()
    turns = load(transcript.path).turns
    assert [getattr(t, "text", None) for t in turns] == ["One", "Wel", "Two", ""]
    assert [len(t.rounds) for t in turns if isinstance(t, Reply)] == [1, 0]


def test_a_note_inside_a_reply_does_not_cut_it(tmp_path: Path) -> None:
    transcript = Transcript.create(tmp_path)
    transcript.user("Hi")
    transcript.round(word_round(0, "Good"))
    transcript.note("chain", "2")
    transcript.round(word_round(1, " day"))
    transcript.reply(STOPPED)
    transcript.close()
    assert [getattr(t, "text", "") for t in load(transcript.path).turns] == ["Hi", "Good day", "2"]


def test_a_file_cut_at_any_byte_is_read_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # hundreds of them take long on a busy disk
    whole = chat(tmp_path, "One", "Two").read_bytes()
    starts = [0, *(i + 1 for i, byte in enumerate(whole) if byte == 10)]
    path = tmp_path / "cut.jsonl"
    cuts = {*range(starts[2], len(whole), 7), *(i + d for i in starts[3:] for d in (-2, -1, 0))}
    for cut in sorted(cuts):
        path.write_bytes(whole[:cut])
        transcript, before = Transcript.resume(path)
        torn = cut not in starts and whole[cut : cut + 1] != b"\n"
        assert before.skipped == torn
        transcript.user("Three")
        transcript.close()
        after = load(path)
        assert after.skipped == torn
        assert after.turns[: len(before.turns)] == before.turns
        assert getattr(after.turns[-1], "text", "") == "Three"
    assert len(before.turns) == 5


@pytest.mark.parametrize(
    ("column", "row", "value"),
    [
        ("index", 1, "1"),
        ("index", 1, True),
        ("text", 1, 5),
        ("text", 1, None),
        ("temperature", 1, "0.8"),
        ("own_kind", 1, "other"),
        ("own_kind", 1, 3),
        ("drafted", 1, None),
        ("drafted", 1, [["7", "a", 0.5, 0.5]]),
        ("drafted", 1, [[7, 8, 0.5, 0.5]]),
        ("drafted", 1, [[7, "a", "0.5", 0.5]]),
        ("drafted", 1, [[7, "a", 0.5]]),
        ("drafted", 1, ["7a.."]),
        ("own", 1, [7.0, "a", None, 0.5]),
        ("considered", 1, [[True, "a", None, 0.5]]),
    ],
)
def test_one_damaged_cell_damages_its_rounds(column: str, row: int, value: object) -> None:
    record = pack_rounds([some_round(i, random.Random(7)) for i in range(3)])
    assert unpack_rounds(record)
    record[column][row] = value
    with pytest.raises(Damaged):
        unpack_rounds(record)


def test_whole_numbers_are_probabilities_and_seconds() -> None:
    record = json.loads(encode(pack_rounds(rounds(4))))
    record["seconds"][2] = 1
    record["drafted"][0] = [[7, "a", 1, 0]]
    found = unpack_rounds(record)
    assert found[2].seconds == 1.0
    assert found[0].drafted == (Token(7, "a", 1.0, 0.0),)
    assert [type(found[2].seconds), type(found[0].drafted[0].draft_p)] == [float, float]


@pytest.mark.parametrize(
    "line",
    [
        b"\0" * 5000,
        b"not json",
        b"[1,2]",
        b"3",
        b"{}",
        b'{"type":"message"}',
        b'{"type":"message","role":"robot","text":"x"}',
        b'{"type":"message","role":"user","text":7}',
        b'{"type":"rounds","index":[0]}',
        b'{"type":"rounds","index":[0,1],"position":[5]}',
        b'{"type":"reply","text":"x","token_ids":"x","finished":{},"controls":{}}',
        b'{"type":"settings","controls":{"chain":-4}}',
        b'{"type":"header","format":"1"}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
    ids=range(15),
)
def test_a_damaged_line_is_skipped_and_counted(tmp_path: Path, line: bytes) -> None:
    path = chat(tmp_path, "One")
    good = load(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], line, b"\n", *lines[2:]]))
    assert load(path) == replace(good, skipped=1)


def test_zeros_of_a_power_cut_before_a_record_do_not_cost_it(tmp_path: Path) -> None:
    path = chat(tmp_path, "One")
    good = load(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"\0" * 4096, *lines[1:]]))
    assert load(path) == good


def test_a_lost_header_does_not_cost_the_messages(tmp_path: Path) -> None:
    path = chat(tmp_path, "One")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0][:20] + b"\n", *lines[1:]]))
    conversation = load(path)
    assert (conversation.skipped, conversation.header.id) == (1, path.stem)
    assert [getattr(t, "text", "") for t in conversation.turns] == ["Be kind.", "One", "yes"]


def test_records_and_keys_of_a_newer_writer_are_ignored(tmp_path: Path) -> None:
    path = chat(tmp_path, "One")
    good = load(path)
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    for record in records:
        record["later"] = {"x": 1}
    path.write_bytes(b"".join(encode(r) for r in [*records, {"type": "vote", "up": True, "turn": 1}]))
    assert load(path) == good


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = chat(tmp_path, "One")
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":2', 1))
    with pytest.raises(TranscriptError, match=r"format 2.*Update"):
        load(path)
    for _ in range(2):  # the second time: the first let go of the file
        with pytest.raises(TranscriptError, match="format 2"):
            Transcript.resume(path)
    assert [s.id for s in list_transcripts(tmp_path)] == [path.stem]


@pytest.mark.parametrize("content", [b"", b"hello\n", b'{"a":1}\n'])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(TranscriptError, match="not a transcript"):
        Transcript.resume(path)
    assert path.read_bytes() == content
    with pytest.raises(TranscriptError, match="cannot be read"):
        load(tmp_path / "y.jsonl")


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    transcript = Transcript.create(tmp_path)
    transcript.user("Hi")
    with pytest.raises(TranscriptError, match="open in another"):
        Transcript.resume(transcript.path)
    code = (
        "import sys; from pathlib import Path\n"
        "from eagle3chat.transcript import Transcript\n"
        "from eagle3chat.engine.errors import TranscriptError\n"
        "try: Transcript.resume(Path(sys.argv[1]))[0].close()\n"
        "except TranscriptError: sys.exit(7)\n"
    )
    command = [sys.executable, "-c", code, str(transcript.path)]
    assert subprocess.run(command, check=False).returncode == 7
    transcript.close()
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.parametrize(("code", "works"), [(errno.ENOLCK, True), (errno.EIO, False)])
def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, works: bool) -> None:
    def flock(fd: int, how: int) -> None:
        raise OSError(code, "no")

    monkeypatch.setattr("eagle3chat.transcript_file.fcntl.flock", flock)
    transcript = Transcript.create(tmp_path)
    with contextlib.nullcontext() if works else pytest.raises(TranscriptError, match="can no longer be written"):
        transcript.user("Hi")
    transcript.close()
    assert (transcript.path.stat().st_size > 0) is works


def test_resume_goes_on_where_it_ended(tmp_path: Path) -> None:
    controls = Controls(2, Sampling(0.5, seed=9))
    path = chat(tmp_path, "One", controls=controls)
    transcript, conversation = Transcript.resume(path)
    assert (conversation.user_turns, conversation.system) == (1, "Be kind.")
    size = path.stat().st_size
    transcript.system("Be kind.")
    transcript.opened(INFO, controls)
    assert path.stat().st_size == size, "the same pair and settings are no news"
    transcript.opened(replace(INFO, model="n"), Controls(1))
    transcript.user("Two")
    transcript.round(word_round(0, "no"))
    transcript.reply(STOPPED)
    transcript.close()
    after = load(path)
    assert [r.pair.model for r in after.turns if isinstance(r, Reply)] == ["m", "n"]
    assert [r.controls.chain for r in after.turns if isinstance(r, Reply)] == [2, 1]
    assert (after.pair.model, after.header.pair.model, after.controls) == ("n", "m", Controls(1))
    assert list_transcripts(tmp_path)[0].turns == 2
    transcript, _ = Transcript.resume(path)
    size = path.stat().st_size
    transcript.opened(replace(INFO, model="n"), Controls(1))
    assert path.stat().st_size == size
    transcript.close()


def test_a_successor_is_another_file_on_the_same_pair(tmp_path: Path) -> None:
    first = Transcript.create(tmp_path)
    first.system("Be kind.")
    first.opened(INFO, Controls(2))
    second = first.successor()
    second.user("Hi")
    second.close()
    conversation = load(second.path)
    assert second.id != first.id
    assert (conversation.pair.model, conversation.controls, conversation.system) == ("m", Controls(2), "Be kind.")


def test_messages_carry_ids_for_the_model_that_wrote_them(tmp_path: Path) -> None:
    path = chat(tmp_path, "One")
    transcript, _ = Transcript.resume(path)
    transcript.system("Be brief.")
    transcript.user("Never answered")
    transcript.user("Two")
    transcript.round(word_round(0, "yes"))
    transcript.round(STOP_ROUND)
    transcript.reply(STOPPED)
    transcript.user("Three")
    transcript.round(word_round(0, "a "))
    transcript.reply(Finished("cancelled", "", "tail", USAGE))
    transcript.user("Four")
    transcript.round(word_round(0, "EN"))
    transcript.round(word_round(1, "D"))
    transcript.reply(Finished("stop", "END", "", USAGE))
    transcript.user("Five")
    transcript.close()
    expected = (
        Message("system", "Be brief."),
        Message("user", "One"),
        Message("assistant", "yes", (100,)),
        Message("user", "Two"),
        Message("assistant", "yes", (100,)),
        Message("user", "Three"),
        Message("assistant", "a tail", (100,)),
        Message("user", "Four"),
        Message("assistant", "END", None),
    )
    conversation = load(path)
    assert to_messages(conversation, INFO) == expected
    without = tuple(replace(m, token_ids=None) for m in expected)
    assert to_messages(conversation, replace(INFO, model="other")) == without
    assert to_messages(conversation) == without


def test_a_stopped_reply_whose_rounds_are_lost_has_no_sure_ids(tmp_path: Path) -> None:
    path = chat(tmp_path, "One")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if not line.startswith(b'{"type":"rounds"')))
    assert to_messages(load(path), INFO)[-1] == Message("assistant", "yes", None)


def test_reply_ids_drop_the_stop_token_alone() -> None:
    reply = [word_round(0, "yes"), STOP_ROUND]
    assert reply_ids(reply, STOPPED) == (100,)
    assert reply_ids(reply, Finished("length", "", "", USAGE)) == (100, 2)
    assert reply_ids(reply, Finished("stop", "\n\n", "", USAGE)) == (100, 2)
    assert reply_ids([], STOPPED) == ()


def test_a_full_disk_is_told_once_and_the_chat_goes_on(tmp_path: Path) -> None:
    transcript = Transcript.create(tmp_path)
    transcript.user("Hi")
    size = transcript.path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
    try:
        for r in rounds(50):
            transcript.round(r)
        with pytest.raises(TranscriptError, match="can no longer be written: file too large"):
            transcript.flush()
        assert transcript.broken == os.strerror(errno.EFBIG).lower()
        transcript.round(word_round(50, "x"))
        transcript.reply(STOPPED)
        transcript.user("Again")
        transcript.note("a", "b")
        transcript.settings(Controls(0))
        transcript.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    conversation = load(transcript.path)
    assert (len(conversation.turns), conversation.skipped) == (1, 1)


def test_a_directory_that_cannot_be_made_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    transcript = Transcript.create(tmp_path / "file" / "sub")
    with pytest.raises(TranscriptError, match="can no longer be written"):
        transcript.user("Hi")
    transcript.user("Hi")
    transcript.close()


def test_close_twice_and_use_after_it(tmp_path: Path) -> None:
    transcript = Transcript.create(tmp_path)
    transcript.user("Hi")
    transcript.round(word_round(0, "x"))
    transcript.close()
    transcript.close()
    size = transcript.path.stat().st_size
    transcript.user("late")
    transcript.flush()
    assert transcript.path.stat().st_size == size
    assert getattr(load(transcript.path).turns[-1], "text", "") == "x"
