"""The remote handle's parts without a network: SSE, chunks, figures of speculation, metrics text, requests."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3chat.engine.errors import ServerError, SettingError
from eagle3chat.engine.events import Prefill, Told
from eagle3chat.engine.remote_chunk import keepalive, read_chunk
from eagle3chat.engine.remote_dialect import LLAMA, LM_STUDIO, MLX, SGLANG, VLLM
from eagle3chat.engine.remote_metrics import Counters, counters, gauge, since
from eagle3chat.engine.remote_options import ServerOptions
from eagle3chat.engine.remote_request import CHAT, TEXT, request_for
from eagle3chat.engine.remote_speculation import drafts, told_by
from eagle3chat.engine.remote_sse import Comment, EventReader
from eagle3chat.engine.requests import Controls, Message, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.templates.loader import load_template

STREAM = (
    ': ping\r\n\r\ndata: {"a": "größer 🙂"}\n\nevent: x\ndata: one\ndata:two\n\n\n:\ndata: last\r\rdata: [DONE]\n\n'
).encode()
EVENTS = [Comment("ping"), '{"a": "größer 🙂"}', "one\ntwo", Comment(""), "last", "[DONE]"]


@settings(deadline=None, derandomize=True)  # a busy machine does not fail it
@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    reader, found = EventReader(), []
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in pairwise(edges):
        found += reader.feed(STREAM[start:end])
    assert found == EVENTS


def test_an_event_without_its_blank_line_counts_at_the_end() -> None:
    reader = EventReader()
    assert list(reader.feed(b"data: x")) == []
    assert list(reader.end()) == ["x"]


def test_text_that_is_not_utf8_is_an_error_not_a_mark() -> None:
    with pytest.raises(ServerError, match="UTF-8"):
        list(EventReader().feed(b"data: \xff\n\n"))


@pytest.mark.parametrize("data", ["{", "[]", '"x"', "NaN", "[" * 100_000])
def test_an_event_that_is_no_object_is_an_error(data: str) -> None:
    with pytest.raises(ServerError, match=r"not JSON|no object"):
        read_chunk(data)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"error": {"message": "min_p is not supported", "code": 400}}, "status 400, min_p is not supported"),
        ({"error": "generation failed\nbadly"}, "generation failed badly"),
        ({"object": "error", "message": "too long", "code": 400}, "too long"),
        ({"error": {}, "object": "error"}, "without a word"),
    ],
)
def test_an_error_within_the_stream_is_told_in_one_line(value: object, words: str) -> None:
    with pytest.raises(ServerError) as caught:
        read_chunk(json.dumps(value))
    assert caught.value.message == f"The server ended the reply with an error: {words}."


def test_thinking_is_read_under_both_names_and_beside_the_answer() -> None:
    both = {"choices": [{"delta": {"reasoning": "a", "content": "b"}}]}
    old = {"choices": [{"delta": {"reasoning_content": "c", "content": None}, "finish_reason": None}]}
    assert (read_chunk(json.dumps(both)).thought, read_chunk(json.dumps(both)).text) == ("a", "b")
    assert (read_chunk(json.dumps(old)).thought, read_chunk(json.dumps(old)).text) == ("c", "")


def test_progress_of_the_prompt() -> None:
    chunk = read_chunk('{"choices": [], "prompt_progress": {"total": 90, "cache": 20, "processed": 64, "time_ms": 5}}')
    assert chunk.prefill == Prefill(64, 90, 20)
    assert keepalive("keepalive 512/2048") == Prefill(512, 2048, 0)
    assert keepalive("ping") is None


def test_figures_of_each_dialect() -> None:
    vllm = {
        "usage": {"prompt_tokens": 9, "completion_tokens": 21, "prompt_tokens_details": {"cached_tokens": 0}},
        "metrics": {
            "speculative_decoding": {
                "mean_acceptance_length": 2.0,
                "acceptance_histogram": [4, 3, 2, 1],
                "num_spec_steps": 10,
                "num_accepted_draft_tokens": 10,
                "num_draft_tokens": 30,
                "num_spec_tokens": 3,
            }
        },
    }
    assert told_by(vllm) == Told(
        "vLLM's summary of the reply", False, 9, 0, 21, 10, 30, 10, 2.0, accepted_at=(6, 3, 1), decode_seconds=None
    )
    assert told_by(vllm).conditional == (0.6, 0.5, 1 / 3)
    sglang = {
        "spec_verify_ct": 8,
        "spec_num_correct_drafts": 6,
        "spec_num_proposed_drafts": 24,
        "spec_accept_length": 1.9,
        "spec_correct_drafts_histogram": [4, 2, 2, 0],
    }
    told = told_by({"sglext": {"spec_tokens_details": sglang}})
    assert (told.rounds, told.drafted, told.accepted, told.tau, told.accepted_at) == (8, 24, 6, 1.75, (4, 2, 0))
    old = told_by({"meta_info": {"spec_verify_ct": 8, "spec_accept_token_num": 6, "spec_draft_token_num": 24}})
    assert (old.rounds, old.drafted, old.accepted, old.tau, old.accepted_at) == (8, 24, 6, 1.75, None)
    timings = {"prompt_n": 5, "cache_n": 7, "predicted_n": 40, "predicted_ms": 390.0, "draft_n": 30}
    told = told_by({"timings": {**timings, "draft_n_accepted": 44}})
    assert (told.prompt_tokens, told.reused_tokens, told.generated_tokens, told.decode_seconds) == (12, 7, 40, 0.4)
    assert (told.drafted, told.accepted, told.rounds, told.tau) == (30, 30, None, None)  # clamped; rounds are not told
    stats = {"total_draft_tokens_count": 12, "accepted_draft_tokens_count": 5, "rejected_draft_tokens_count": 7}
    assert (told_by({"stats": stats}).drafted, told_by({"stats": stats}).accepted) == (12, 5)


def test_what_is_not_told_is_not_zero() -> None:
    assert told_by({"choices": [], "timings": {"predicted_n": 5}}) == Told(generated_tokens=5)
    assert told_by({"usage": None, "metrics": {"speculative_decoding": None}}) == Told()
    assert told_by({"usage": {"completion_tokens": "7", "prompt_tokens": -1}}) == Told()


def test_places_that_do_not_add_up_are_not_shown() -> None:
    assert drafts("x", rounds=4, drafted=8, accepted=5, accepted_at=(3, 2)).accepted_at == (3, 2)
    assert drafts("x", rounds=4, drafted=8, accepted=5, accepted_at=(2, 3)).accepted_at is None
    assert drafts("x", rounds=4, drafted=8, accepted=5, accepted_at=(5, 0)).accepted_at is None
    assert drafts("x", rounds=4, drafted=8, accepted=5, accepted_at=(3, 1)).accepted_at is None


def metrics(
    drafted: int, accepted: int, at: tuple[int, ...], rounds: int, model: str = "gemma", engine: int = 0
) -> str:
    labels = f'engine="{engine}",model_name="{model}"'
    lines = [
        "# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.",
        "# TYPE vllm:spec_decode_num_drafts_total counter",
        f"vllm:spec_decode_num_drafts_total{{{labels}}} {rounds}.0",
        f"vllm:spec_decode_num_drafts_created{{{labels}}} 1.7e+09",
        f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {drafted}.0",
        f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {accepted}.0",
        f"vllm:spec_decode_num_accepted_tokens_created{{{labels}}} 1.7e+09",
        f"vllm:kv_cache_usage_perc{{{labels}}} NaN",
    ]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{i}"}} {n}.0' for i, n in enumerate(at)
    ]
    return "\n".join([*lines, ""])


def test_counters_are_those_of_the_model_over_its_engines() -> None:
    text = (
        metrics(30, 12, (8, 3, 1), 10) + metrics(3, 1, (1, 0, 0), 1, engine=1) + metrics(900, 1, (1, 0), 300, "other")
    )
    assert counters(text, "vllm:", "gemma") == Counters(11, 33, 13, (9, 3, 1))
    assert counters(text, "vllm:", "third") is None  # which of the two is not known
    assert counters(metrics(30, 12, (8, 3, 1), 10), "vllm:", "an alias") == Counters(10, 30, 12, (8, 3, 1))
    assert counters("process_cpu_seconds_total 4\n", "vllm:", "gemma") is None
    bare = "llamacpp:spec_decode_num_drafts_total 5\nllamacpp:spec_decode_num_accepted_tokens_total 4 1700000000\n"
    assert counters(bare, "llamacpp:", "gemma") == Counters(5, 0, 4, ())


def test_between_two_readings() -> None:
    before = counters(metrics(30, 12, (8, 3, 1), 10), "vllm:", "gemma")
    after = counters(metrics(60, 30, (17, 9, 4), 20), "vllm:", "gemma")
    told = since(before, after, "counters")
    assert (told.rounds, told.drafted, told.accepted, told.tau) == (10, 30, 18, 2.8)
    assert (told.accepted_at, told.shared, told.source) == ((9, 6, 3), True, "counters")


def test_counters_that_were_reset_say_nothing() -> None:
    before = counters(metrics(30, 12, (8, 3, 1), 10), "vllm:", "gemma")
    assert since(before, counters(metrics(6, 3, (2, 1, 0), 2), "vllm:", "gemma"), "c") == Told()
    assert since(before, counters(metrics(33, 12, (8, 3, 0), 11), "vllm:", "gemma"), "c") == Told()
    assert since(None, before, "c") == Told()
    assert since(before, before, "c") == Told()


def test_a_gauge_of_several_engines_is_no_figure() -> None:
    line = 'sglang:spec_accept_length{{model_name="gemma",tp_rank="{}"}} 2.5\n'
    assert gauge(line.format(0), "sglang:spec_accept_length", "gemma") == 2.5
    assert gauge(line.format(0) + line.format(1), "sglang:spec_accept_length", "gemma") is None


SAMPLING = Sampling(0.7, 40, 0.9, 0.05, 2**40, repetition=1.1, presence=0.2, frequency=-0.3)
TURNS = (
    Message("system", "Be brief."),
    Message("user", "Hi"),
    Message("assistant", "<think>\nhm\n</think>\n\nHello", (1, 2)),
    Message("user", "Go"),
)


def say(*messages: Message, sampling: Sampling = SAMPLING, limit: int | None = None, raw: bool = False) -> Say:
    return Say(messages or TURNS, Controls(3, sampling), limit, raw)


def test_every_value_is_sent_by_the_servers_name() -> None:
    body = request_for(say(limit=9), "m", LLAMA, ("END",), None, frozenset()).body
    assert {k: body[k] for k in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "max_tokens", "stop")} == {
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.05,
        "repeat_penalty": 1.1,
        "max_tokens": 9,
        "stop": ["END"],
    }
    assert (body["presence_penalty"], body["frequency_penalty"], body["model"]) == (0.2, -0.3, "m")
    assert body["seed"] < 2**32 - 1
    off = request_for(say(sampling=Sampling()), "m", VLLM, (), None, frozenset()).body
    assert (off["temperature"], off["top_k"], off["top_p"], off["min_p"], off["seed"]) == (0.0, -1, 1.0, 0.0, 0)
    assert off["repetition_penalty"] == 1.0
    assert "max_tokens" not in off and "stop" not in off
    assert request_for(say(), "m", MLX, (), None, frozenset()).body["max_tokens"] == 8192


def test_thinking_and_ids_are_not_sent_back() -> None:
    request = request_for(say(), "m", VLLM, (), None, frozenset())
    assert request.path == CHAT
    assert [m["content"] for m in request.body["messages"]] == ["Be brief.", "Hi", "Hello", "Go"]


def test_what_a_server_will_not_do_is_said() -> None:
    def notes(dialect: object, sampling: Sampling) -> str:
        return " ".join(request_for(say(sampling=sampling), "m", dialect, (), None, frozenset()).notes)  # type: ignore[arg-type]

    assert "min-p" in notes(SGLANG, Sampling(min_p=0.1))
    assert "min-p" in notes(LM_STUDIO, Sampling(min_p=0.1))
    assert "20 tokens" in notes(MLX, Sampling(repetition=1.2))
    assert "seed" in notes(LLAMA, Sampling(seed=2**32 - 1))
    assert notes(SGLANG, Sampling()) == notes(VLLM, SAMPLING) == notes(LLAMA, replace(SAMPLING, seed=5)) == ""


def test_going_on() -> None:
    begun = (Message("user", "Hi"), Message("assistant", "Hel"))
    body = request_for(say(*begun), "m", VLLM, (), None, frozenset()).body
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    with pytest.raises(ServerError, match="cannot go on"):
        request_for(say(*begun), "m", MLX, (), None, frozenset())
    thinking = (Message("user", "Hi"), Message("assistant", "<think>\nhm"))
    with pytest.raises(ServerError, match="thinking"):
        request_for(say(*thinking), "m", VLLM, (), None, frozenset())


def test_our_own_template_makes_the_prompt() -> None:
    template = load_template("chatml")
    request = request_for(say(Message("user", "Hi")), "m", MLX, (), template, frozenset())
    assert request.path == TEXT
    assert request.body["prompt"].endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert "<|im_end|>" in request.body["stop"]
    begun = (Message("user", "Hi"), Message("assistant", "Hel", (1,)))
    assert request_for(say(*begun), "m", MLX, (), template, frozenset()).body["prompt"].endswith("assistant\nHel")
    raw = request_for(say(Message("user", "as it is"), raw=True), "m", VLLM, (), None, frozenset())
    assert (raw.path, raw.body["prompt"]) == (TEXT, "as it is")


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://h:1/v1/", "http://h:1"),
        ("https://h/proxy/v1", "https://h/proxy"),
        ("http://[::1]:9", "http://[::1]:9"),
    ],
)
def test_addresses(url: str, origin: str) -> None:
    assert ServerOptions(url).origin == origin


@pytest.mark.parametrize(
    "url", ["ftp://h", "http://", "http://u:secret@h", "http://h?key=secret", "http://h:x", "http://[1"]
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(SettingError) as caught:
        _ = ServerOptions(url).origin
    assert "secret" not in str(caught.value)


def test_the_key_is_not_in_the_options_words() -> None:
    assert "sk-1" not in repr(ServerOptions("h", key="sk-1"))
    assert ServerOptions("http://far.example", key="k").exposes_key
    assert not ServerOptions("http://127.0.0.1:1", key="k").exposes_key
    assert not ServerOptions("https://far.example", key="k").exposes_key
