"""`run` and `bench` on a server: text, report, JSON, errors, and the key, which is written nowhere."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from fake_server import DONE, FakeServer, delta, event, models, serving, stream

from eagle3chat.cli import main
from eagle3chat.engine.events import Told, Usage
from eagle3chat.engine.remote_worker import RemoteWorker
from eagle3chat.engine.requests import PairOptions
from eagle3chat.engine.worker import DecodeWorker
from eagle3chat.server_bench import lines, summarise

CHAT = "/v1/chat/completions"
KEY = "sk-test-never-on-disk"
SPEC = {
    "acceptance_histogram": [1, 1, 2],
    "num_spec_steps": 4,
    "num_accepted_draft_tokens": 5,
    "num_draft_tokens": 8,
}


def usage(n: int) -> dict[str, int]:
    return {"prompt_tokens": 12, "completion_tokens": n}


TOLD = stream(
    event(delta("Hello", usage=usage(3))),
    event(delta(" you\x1b[2J", usage=usage(8))),
    event(delta(None, "stop", usage=usage(9))),
    event({"choices": [], "usage": usage(9), "metrics": {"speculative_decoding": SPEC}}),
    DONE,
)
SILENT = stream(event(delta("Hello")), event(delta(None, "stop")), DONE)


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.delenv("EAGLE3CHAT_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)


def fake(reply: object = TOLD) -> dict[str, object]:
    return {"/v1/models": models("vllm", max_model_len=512), CHAT: reply}


def run(server: FakeServer, *argv: str) -> int:
    return main(["run", "--server", server.url, "--prompt", "Hi", *argv])


def test_text_on_stdout_and_what_was_told_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(fake()) as server:
        assert run(server, "--temperature", "0.5", "--seed", "3", "--max-new-tokens", "20") == 0
        body = server.asked(CHAT)[0].body
    out, err = capsys.readouterr()
    assert out == "Hello you\x1b[2J\n"  # a pipe gets it as it is
    assert "server: 9 tokens, 4 rounds, tau 2.25, 5 of 8 drafts accepted, by place .75 .67, by vLLM's summary" in err
    assert "Rejected tokens cannot be seen" in err
    assert (body["max_tokens"], body["seed"]) == (20, 3)
    stats = json.loads(err.splitlines()[-1])
    assert (stats["tau"], stats["rounds"], stats["generated_tokens"], stats["drafted"]) == (2.25, 4, 9, 8)
    assert (stats["rejected"], stats["unreached"], stats["chain"], stats["round_ms"]) == (None, None, None, None)
    assert stats["acceptance_unconditional"] == [0.75, 0.5]


def test_what_is_not_told_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(fake(SILENT)) as server:
        assert run(server, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    stats = document["stats"]
    assert document["text"] == "Hello" and document["token_ids"] == []
    unknown = (
        "prompt_tokens",
        "generated_tokens",
        "rounds",
        "tau",
        "accepted",
        "reused_tokens",
        "decode_token_per_sec",
    )
    assert {name: stats[name] for name in unknown} == dict.fromkeys(unknown)
    assert stats["speculation_source"] == ""


def test_a_trace_has_the_pieces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(fake()) as server:
        assert run(server, "--trace", "t.jsonl", "--quiet") == 0
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [row["burst"] for row in rows] == [{"tokens": 3}, {"tokens": 5}]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--server", "ftp://h"), "neither http nor https"),
        (("--server", "http://h", "--model", "x"), "exclude each other"),
        (("--server", "http://h", "--raw-template"), "Add --template NAME"),
        (("--server-model", "x"), "Name it with --server URL"),
        (("--server", "http://user:pw@h"), "EAGLE3CHAT_API_KEY"),
    ],
)
def test_flags_that_do_not_fit(argv: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--prompt", "Hi", *argv]) == 2
    assert words in capsys.readouterr().err


def test_a_refusal_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(fake(lambda h: h.json({"error": {"message": "full"}}, 429))) as server:
        assert run(server) == 2
    assert "eagle3chat: The server answered with status 429 (too many requests): full." in capsys.readouterr().err


def test_a_reply_that_breaks_off_keeps_what_came(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(fake(stream(event(delta("half")), 0.05, "reset"))) as server:
        assert run(server, "--quiet") == 2
    captured = capsys.readouterr()
    assert captured.out.startswith("half")
    assert "broke off. What came of the reply is not all." in captured.err and "/continue" not in captured.err


def test_our_own_template(capsys: pytest.CaptureFixture[str]) -> None:
    routes = {**fake(), "/v1/completions": stream(event({"choices": [{"text": "Hey", "finish_reason": "stop"}]}), DONE)}
    with serving(routes) as server:
        assert run(server, "--raw-template", "--template", "chatml", "--quiet") == 0
        assert "<|im_start|>user\nHi<|im_end|>" in server.asked("/v1/completions")[0].body["prompt"]
        assert server.asked(CHAT) == []
    assert capsys.readouterr().out == "Hey\n"


@pytest.mark.parametrize("place", ["environment", "settings"])
def test_the_key_goes_to_the_server_and_nowhere_else(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = []
    if place == "environment":
        monkeypatch.setenv("EAGLE3CHAT_API_KEY", KEY)
    else:
        (tmp_path / "s.toml").write_text(f'api_key = "{KEY}"\n')
        argv = ["--settings", "s.toml"]
    with serving(fake()) as server:
        assert run(server, "--trace", "t.jsonl", *argv) == 0
        server.routes[CHAT] = lambda h: h.json({"error": {"message": f"bad {KEY}"}}, 401)
        assert run(server, *argv) == 2
        assert {seen.headers["authorization"] for seen in server.seen} == {f"Bearer {KEY}"}
    out, err = capsys.readouterr()
    assert KEY not in out + err
    assert files_with(KEY, tmp_path) == ([] if place == "environment" else ["s.toml"])


def files_with(words: str, under: Path) -> list[str]:
    paths = [Path(base) / name for base, _, names in os.walk(under) for name in names]
    return [path.name for path in paths if words.encode() in path.read_bytes()]


def test_a_key_of_the_wrong_kind_is_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.toml").write_text("api_key = 123454321\n")
    assert main(["run", "--prompt", "Hi", "--settings", "s.toml", "--server", "http://h"]) == 2
    err = capsys.readouterr().err
    assert "api_key" in err and "123454321" not in err


def test_bench_measures_the_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.jsonl").write_text('{"id": "a", "prompt": "One"}\n{"id": "b", "prompt": "Two"}\n')
    with serving(fake()) as server:
        argv = ["bench", "--server", server.url, "--prompts", "p.jsonl", "--repeat", "2", "--max-new-tokens", "7"]
        assert main(argv) == 0
        limits = [seen.body["max_tokens"] for seen in server.asked(CHAT)]
        assert limits == [8, 7, 7, 7, 7]  # the first one warms up
    *table, document = capsys.readouterr().out.splitlines()
    figures = json.loads(document)["server"]
    assert (figures["runs"], figures["tokens"], figures["rounds"], figures["tau"]) == (4, 36, 16, 2.25)
    assert figures["acceptance"] == [0.75, 0.666667]
    assert figures["first_text_seconds"] > 0
    assert "2.250" in table[3] and "20 of 32" in table[3] and "0.750  0.667" in table[3]


def test_bench_next_to_a_local_pair(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(fake()) as server:
        argv = ["bench", "--server", server.url, "--limit", "1", "--max-new-tokens", "4"]
        assert main([*argv, "--backend", "scripted", "--model", "x", "--chains", "0,2"]) == 0
    out = capsys.readouterr().out.splitlines()
    document = json.loads(out[-1])
    assert document["server"]["runs"] == 1
    assert [row["chain"] for row in document["chains"]] == [0, 2]


def test_a_bench_does_not_know_what_one_reply_did_not_tell() -> None:
    def one(told: Told) -> Usage:
        return Usage(0, 0, told.generated_tokens or 0, 0, 0, 0, 0, (), (), (), 0.1, 2.0, 0.1, told)

    known = Told("s", generated_tokens=8, rounds=4, drafted=8, accepted=4, tau=2.0, accepted_at=(3, 1))
    both = summarise([one(known), one(Told(generated_tokens=5))])
    assert (both.tokens, both.tokens_per_second, both.rounds, both.tau, both.acceptance) == (13, 3.25, None, None, ())
    assert "not known" in lines(both)[2] and "cache" not in lines(both)[0]
    cached = summarise([one(replace(known, prompt_tokens=30, reused_tokens=8))] * 2)
    assert "16 of 60 prompt tokens were in its cache" in lines(cached)[0]
    assert summarise([one(known), one(Told("s", tau=3.0))]).tau == 2.5  # the mean of the replies' own
    assert summarise([one(known), one(Told())]).tokens is None


def test_the_chat_gets_a_server_and_a_pair_once_one_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}

    def run_chat(options: PairOptions, **more: object) -> int:
        given.update(more, options=options)
        return 0

    monkeypatch.setattr("eagle3chat.ui.run.run_chat", run_chat)
    monkeypatch.setattr("eagle3chat.chat_command.at_terminal", lambda: True)
    Path("s.toml").write_text('model = "/a/bundle"\n')
    assert main(["--server", "http://h:1", "--server-model", "m", "--settings", "s.toml", "--no-transcript"]) == 0
    make, options = given["worker_factory"], given["options"]
    assert isinstance(options, PairOptions) and callable(make)
    assert options.bundle == ""  # the settings' bundle is for local chats
    assert isinstance(make(options, print), RemoteWorker)
    assert isinstance(make(replace(options, bundle="/other"), print), DecodeWorker)
