"""A server behind the decode worker's interface, on loopback: dialects, failures, stops, and where requests go."""

from __future__ import annotations

import itertools
import json
import re
import socket
import ssl
import time

import httpx
import pytest
from fake_server import (
    DONE,
    HELLO,
    SHORT,
    Handler,
    Heard,
    asking,
    delta,
    endless,
    event,
    models,
    serving,
    stream,
    talking,
)

from eagle3chat.engine.errors import WorkerError
from eagle3chat.engine.events import Burst, Event, Failed, Finished, Loading, Prefill, Ready, Round
from eagle3chat.engine.remote_client import certificates
from eagle3chat.engine.remote_options import ServerOptions, Timeouts
from eagle3chat.engine.remote_worker import RemoteWorker
from eagle3chat.engine.requests import Controls, Message, Say

CHAT = "/v1/chat/completions"
VLLM = models("vllm", root="google/gemma", max_model_len=4096)


def usage(prompt: int, generated: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


SUMMARY = {
    "speculative_decoding": {
        "mean_acceptance_length": 2.5,
        "acceptance_histogram": [0, 1, 1],
        "num_spec_steps": 2,
        "num_accepted_draft_tokens": 3,
        "num_draft_tokens": 4,
    }
}


def test_vllm_with_its_summary() -> None:
    reply = stream(
        event(delta("", usage=usage(11, 0))),
        event(delta(reasoning="so", usage=usage(11, 1))),
        event(delta("Hi ", reasoning=" it is", usage=usage(11, 4))),
        b": keep-alive\n\n",
        event(delta("you", usage=usage(11, 6))),
        event(delta("", "stop", stop_reason=None, usage=usage(11, 7))),
        event({"choices": [], "usage": usage(11, 7), "metrics": SUMMARY}),
        DONE,
    )
    with serving({"/v1/models": VLLM, CHAT: reply}) as fake, talking(fake) as heard:
        info = heard.opened().info
        assert (info.model, info.backend, info.capacity, info.max_chain) == ("gemma", "vLLM", 4096, 0)
        assert info.fixed_chain and not info.adjusts and set(info.unknown) == {"draft", "dtype", "memory_bytes"}
        ended = heard.reply(temperature=0.5, seed=3)
        assert isinstance(ended, Finished)
        assert heard.text == "<think>\nso it is\n</think>\n\nHi you"
        assert [r.burst for r in heard.rounds] == [Burst(1), Burst(3), Burst(2)]
        assert [r.position for r in heard.rounds] == [11, 12, 15]
        assert [r.emitted for r in heard.rounds] == [1, 3, 2]
        assert all(r.tokens == () and r.own_kind is None for r in heard.rounds)
        told = ended.usage.told
        assert told is not None
        assert (told.prompt_tokens, told.generated_tokens, told.rounds, told.tau) == (11, 7, 2, 2.5)
        assert (told.accepted_at, told.shared) == ((2, 1), False)
        assert (ended.reason, ended.usage.tau, ended.usage.generated_tokens) == ("stop", 2.5, 7)
        body = fake.asked(CHAT)[0].body
        assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
        assert (body["seed"], body["temperature"], body["max_tokens"]) == (3, 0.5, 64)


def counters_text(rounds: int, accepted: int, at: tuple[int, ...]) -> str:
    names = [("num_drafts", rounds), ("num_draft_tokens", 2 * rounds), ("num_accepted_tokens", accepted)]
    lines = [f'vllm:spec_decode_{n}_total{{engine="0",model_name="gemma"}} {v}.0' for n, v in names]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="gemma",position="{i}"}} {v}.0'
        for i, v in enumerate(at)
    ]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("after", "tau"), [(counters_text(30, 36, (22, 14)), 2.4), (counters_text(4, 2, (1, 1)), None), ("", None)]
)
def test_vllm_by_its_counters_and_after_a_reset(after: str, tau: float | None) -> None:
    texts = itertools.chain([counters_text(10, 8, (5, 3))], itertools.repeat(after))
    routes = {"/v1/models": VLLM, CHAT: HELLO, "/metrics": lambda h: h.text(next(texts))}
    with serving(routes) as fake, talking(fake) as heard:
        heard.opened()
        ended = heard.reply()
        told = ended.usage.told
        assert heard.text == "Hello."
        assert told.tau == tau
        assert told.shared is (tau is not None)
        assert told.accepted_at == ((17, 11) if tau else None)
        assert (told.generated_tokens, [r.burst for r in heard.rounds]) == (None, [Burst(None)] * 2)


def test_the_time_to_the_first_text_begins_with_the_request() -> None:
    waits = itertools.chain([0.8], itertools.repeat(0.0))

    def slow(h: Handler) -> None:
        time.sleep(next(waits))
        h.text(counters_text(1, 1, (1, 0)))

    with serving({"/v1/models": VLLM, CHAT: HELLO, "/metrics": slow}) as fake, talking(fake) as heard:
        heard.opened()
        usage = heard.reply().usage
        assert 0 < usage.first_token_seconds < 0.7
        assert usage.prefill_seconds == usage.first_token_seconds


def test_sglang_with_its_details() -> None:
    details = {"spec_verify_ct": 4, "spec_num_correct_drafts": 6, "spec_num_proposed_drafts": 12}
    reply = stream(
        event(delta("Hi", usage=usage(5, 3))),
        event(delta(None, "stop", matched_stop="END", usage=usage(5, 10))),
        event({"choices": [], "sglext": {"spec_tokens_details": details}}),
        event({"choices": [], "usage": usage(5, 10)}),
        DONE,
    )
    with serving({"/v1/models": models("sglang", max_model_len=99), CHAT: reply}) as fake, talking(fake) as heard:
        assert heard.opened().info.backend == "SGLang"
        ended = heard.reply(min_p=0.1)
        assert (ended.usage.told.rounds, ended.usage.told.tau) == (4, 2.5)
        assert "min-p" in ended.notes[0]
        assert fake.asked(CHAT)[0].body["return_spec_tokens_details"] is True


def test_sglang_of_before_by_its_gauge() -> None:
    routes = {"/v1/models": models("sglang"), CHAT: HELLO}
    routes["/metrics"] = lambda h: h.text('sglang:spec_accept_length{model_name="gemma"} 2.25\n')
    with serving(routes) as fake, talking(fake) as heard:
        assert "capacity" in heard.opened().info.unknown
        told = heard.reply().usage.told
        assert (told.tau, told.rounds, told.shared) == (2.25, None, True)


def test_llama_server_with_its_timings_and_progress() -> None:
    def timings(n: int, drafted: int = 0, accepted: int = 0) -> dict[str, float]:
        more = {"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {}
        return {"prompt_n": 30, "cache_n": 2, "predicted_n": n, "predicted_ms": 100.0 * (n - 1), **more}

    loading = itertools.count()

    def listed(h: Handler) -> None:
        if next(loading) == 0:
            h.json({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, 503)
        else:
            models("llamacpp", meta={"n_ctx_train": 8192})(h)

    reply = stream(
        event({"choices": [], "prompt_progress": {"total": 32, "cache": 2, "processed": 16, "time_ms": 1}}),
        event(delta("Hi", timings=timings(1))),
        event(delta(" you", timings=timings(2, 3, 1))),
        event(delta(None, "length", timings=timings(4, 6, 2))),
        DONE,
    )
    routes = {"/v1/models": listed, CHAT: reply}
    routes["/props"] = lambda h: h.json({"default_generation_settings": {"n_ctx": 2048}})
    with serving(routes) as fake, talking(fake) as heard:
        assert heard.opened().info.capacity == 2048
        assert any(isinstance(e, Loading) and "loads" in e.stage for e in heard.events)
        ended = heard.reply()
        told = ended.usage.told
        assert heard.events[0] == Prefill(16, 32, 2)
        assert (ended.reason, told.drafted, told.accepted, told.rounds, told.tau) == ("length", 6, 2, None, None)
        assert ended.usage.tokens_per_second == 10.0  # the server's clock begins at the first token
        assert [r.burst for r in heard.rounds] == [Burst(1), Burst(1)]


def test_a_status_is_told_once() -> None:
    error = {"error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}}
    with serving({"/v1/models": lambda h: h.json(error, 401)}) as fake, talking(fake) as heard:
        words = heard.opened().message
        assert words == "The server answered with status 401 (the key is missing or wrong): Invalid API Key."


def test_mlx_serves_what_it_was_started_with() -> None:
    one = {"/v1/models": lambda h: h.json({"data": [{"id": "downloaded"}]}), CHAT: HELLO}
    with serving(one) as fake, talking(fake) as heard:  # the list is that of all downloads
        assert heard.opened().info.model == "default_model"
    with serving(one) as fake, talking(fake, model="default_model") as heard:
        assert heard.opened().info.model == "default_model"
    with serving(one) as fake, talking(fake, model="other") as heard:
        assert heard.opened().message == "The server has no model called other."
    nothing = {"/v1/models": lambda h: h.text(""), CHAT: HELLO}  # where nothing was ever downloaded
    with serving(nothing) as fake, talking(fake) as heard:
        failed = heard.opened()
        assert failed.message == "The server names no model."
        assert "--server-model (default_model of mlx_lm.server)" in failed.fix
    with serving(nothing) as fake, talking(fake, model="default_model") as heard:
        info = heard.opened().info
        assert (info.backend, info.model) == ("mlx_lm.server", "default_model")
        assert isinstance(heard.reply(), Finished)
        assert heard.text == "Hello."


def llama_counters(rounds: int, accepted: int, at: tuple[int, ...]) -> str:
    text = counters_text(rounds, accepted, at).replace("vllm:", "llamacpp:")
    return re.sub(r'engine="0",model_name="gemma",?', "", text)


@pytest.mark.parametrize(
    ("others", "told"),
    [
        (0, (4, 8, 3, 1.75, (2, 1), False)),  # the counters moved by what the reply says itself
        (1, (5, 10, 4, 1.8, (3, 1), True)),
        (6, (10, 20, 9, 1.9, (8, 1), True)),  # somebody else was served: figures of one kind, the server's
    ],
)
def test_llama_server_with_its_timings_and_its_counters(others: int, told: tuple[object, ...]) -> None:
    after = llama_counters(14 + others, 8 + 3 + others, (5 + 2 + others, 3 + 1))
    texts = itertools.chain([llama_counters(10, 8, (5, 3))], itertools.repeat(after))
    timings = {"prompt_n": 3, "cache_n": 0, "predicted_n": 7, "predicted_ms": 70.0, "draft_n": 8, "draft_n_accepted": 3}
    reply = stream(event(delta("Hi")), event(delta(None, "stop", timings=timings)), DONE)
    routes = {"/v1/models": models("llamacpp"), CHAT: reply, "/metrics": lambda h: h.text(next(texts))}
    with serving(routes) as fake, talking(fake) as heard:
        heard.opened()
        t = heard.reply().usage.told
        assert (t.rounds, t.drafted, t.accepted, t.tau, t.accepted_at, t.shared) == told


@pytest.mark.parametrize(("more", "shared"), [(0, False), (4, False), (5, True)])
def test_a_reply_that_was_stopped_may_have_cost_two_more_rounds(more: int, shared: bool) -> None:
    after = llama_counters(14, 8 + 3, (5 + 2, 3 + 1))  # 4 rounds, 8 drafted, 3 accepted
    texts = itertools.chain([llama_counters(10, 8, (5, 3))], itertools.repeat(after))
    timings = {"prompt_n": 3, "cache_n": 0, "predicted_n": 7, "predicted_ms": 70.0}
    timings |= {"draft_n": 8 - more, "draft_n_accepted": 3}
    reply = stream(event(delta("Hi", timings=timings)), 5.0)
    routes = {"/v1/models": models("llamacpp"), CHAT: reply, "/metrics": lambda h: h.text(next(texts))}
    with serving(routes) as fake, talking(fake, timeouts=Timeouts(2.0, 2.0, 9.0, 2.0, 2.0)) as heard:
        heard.opened()
        heard.worker.say(asking())
        heard.until(Round)
        heard.worker.cancel()
        told = heard.until(Finished).usage.told
        assert (told.rounds, told.drafted, told.accepted, told.shared) == (4, 8, 3, shared)


def test_counters_are_asked_for_again_once_the_server_is_back() -> None:
    counts = itertools.count(1)

    def metrics(h: Handler) -> None:
        rounds = next(counts)
        h.text(counters_text(rounds, rounds, (rounds,)))

    routes = {"/v1/models": VLLM, CHAT: HELLO, "/metrics": metrics}
    with serving(routes) as fake:
        heard = Heard(fake.url)
        heard.opened()
        assert heard.reply().usage.told.rounds == 1
    assert isinstance(heard.reply(), Failed)
    with serving(routes, port=fake.port):
        assert heard.reply().usage.told.rounds == 1
        heard.worker.close()


def test_counters_that_are_not_there_are_asked_for_once() -> None:
    with serving({"/v1/models": VLLM, CHAT: HELLO}) as fake, talking(fake) as heard:
        heard.opened()
        assert [heard.reply().usage.told.rounds for _ in range(3)] == [None] * 3
        assert len(fake.asked("/metrics")) == 1


def test_lm_studio_and_mlx_are_known_by_what_they_lack() -> None:
    routes = {"/v1/models": models("organization_owner"), CHAT: HELLO}
    routes["/api/v0/models"] = lambda h: h.json({"data": [{"id": "gemma", "max_context_length": 777}]})
    with serving(routes) as fake, talking(fake) as heard:
        info = heard.opened().info
        assert (info.backend, info.capacity) == ("LM Studio", 777)
    bare = {"/v1/models": lambda h: h.json({"data": [{"id": "a"}, {"id": "b"}]}), CHAT: HELLO}
    with serving(bare) as fake, talking(fake) as heard:
        info = heard.opened().info
        assert (info.backend, info.model) == ("mlx_lm.server", "default_model")
        ended = heard.reply()
        assert ended.usage.told.source == ""  # it tells nothing
        assert fake.asked("/metrics") == []


def test_a_wrong_model_is_told_with_those_that_there_are() -> None:
    with serving({"/v1/models": VLLM}) as fake, talking(fake, model="gamma") as heard:
        failed = heard.opened()
        assert isinstance(failed, Failed) and failed.fatal
        assert failed.message == "The server has no model called gamma."
        assert failed.fix == "Use --server-model with one of: gemma."
        with pytest.raises(WorkerError):
            heard.worker.say(asking())
    with serving({"/v1/models": VLLM, CHAT: HELLO}) as fake, talking(fake, model="google/gemma") as heard:
        assert heard.opened().info.model == "gemma"


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (429, {"Retry-After": "7"}, "status 429 (too many requests): slow down. Try again in 7 seconds."),
        (500, {}, "status 500 (an error in the server): slow down."),
        (503, {}, "status 503 (it is busy or loading): slow down. Try again"),
        (401, {}, "status 401 (the key is missing or wrong): slow down. Set EAGLE3CHAT_API_KEY"),
        (418, {}, "status 418 (refused): slow down."),
    ],
)
def test_a_refusal_is_one_sentence_with_the_status(status: int, headers: dict[str, str], words: str) -> None:
    answers = iter([lambda h: h.json({"error": {"message": "slow\ndown."}}, status, headers), HELLO])
    with serving({"/v1/models": VLLM, CHAT: lambda h: next(answers)(h)}) as fake, talking(fake) as heard:
        heard.opened()
        failed = heard.reply()
        assert isinstance(failed, Failed) and not failed.fatal
        assert words in f"{failed.message} {failed.fix}"
        assert isinstance(heard.reply(), Finished)  # the next one is asked for as if nothing had been


def test_what_does_not_matter_is_left_out_where_it_is_refused() -> None:
    def picky(h: Handler) -> None:
        extra = next((k for k in ("continuous_usage_stats", "top_k") if k in json.dumps(h.request_body)), None)
        if extra:
            name = "stream_options" if extra == "continuous_usage_stats" else extra
            return h.json({"detail": [{"loc": ["body", name], "msg": "extra fields not permitted"}]}, 422)
        return HELLO(h)

    with serving({"/v1/models": VLLM, CHAT: picky}) as fake, talking(fake) as heard:
        heard.opened()
        assert isinstance(heard.reply(), Finished)
        assert isinstance(heard.reply(), Finished)
        assert len(fake.asked(CHAT)) == 4  # the second reply knows
        failed = heard.reply(top_k=5)
        assert isinstance(failed, Failed)
        assert "status 422" in failed.message and failed.fix == "/topk 0 (--top-k 0) turns it off."


@pytest.mark.parametrize("within", [False, True])
def test_min_p_that_vllm_refuses_while_it_speculates(within: bool) -> None:
    error = {"error": {"message": "min_p is not supported with speculative decoding", "code": 400}}

    def route(h: Handler) -> None:
        if not h.request_body["min_p"]:
            return HELLO(h)
        return stream(event(error), DONE)(h) if within else h.json(error, 400)

    with serving({"/v1/models": VLLM, CHAT: route}) as fake, talking(fake) as heard:
        heard.opened()
        failed = heard.reply(min_p=0.1)
        assert "status 400" in failed.message and "/minp 0" in failed.fix
        assert isinstance(heard.reply(), Finished)


def test_characters_in_halves_arrive_whole() -> None:
    data = event(delta("größer 🙂 ja")) + event(delta(None, "stop")) + DONE
    parts = [data[i : i + 1] for i in range(len(data))]
    with serving({"/v1/models": VLLM, CHAT: stream(*parts)}) as fake, talking(fake) as heard:
        heard.opened()
        assert isinstance(heard.reply(), Finished)
        assert heard.text == "größer 🙂 ja"


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((event(delta("half")), b"data: {broken\n\n", DONE), "not JSON"),
        ((event(delta("half")), b"data: [1]\n\n"), "no object"),
        ((event(delta("half")),), "ended the reply in the middle"),
        ((event(delta("half")), 0.05, "reset"), "broke off"),
        ((event(delta("half")), event({"error": {"message": "out of memory", "code": 500}})), "status 500, out of"),
        ((event(delta("half")), 9.0), "said nothing for 1 s"),
    ],
)
def test_a_reply_that_breaks_off_keeps_what_came(parts: tuple[bytes | float | str, ...], words: str) -> None:
    limits = Timeouts(2.0, 2.0, 1.0 if "said nothing" in words else 10.0, 2.0, 2.0)
    answers = iter([stream(*parts), HELLO])
    routes = {"/v1/models": VLLM, CHAT: lambda h: next(answers)(h)}
    with serving(routes) as fake, talking(fake, timeouts=limits) as heard:
        heard.opened()
        failed = heard.reply()
        assert isinstance(failed, Failed) and not failed.fatal
        assert words in failed.message and "/continue" in failed.fix
        assert heard.text == "half"
        assert isinstance(heard.reply(), Finished)
        assert heard.text == "Hello."


def test_a_server_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        heard = Heard(url, Timeouts(0.3, 0.3, 0.3, 0.3, 0.3))
        failed = heard.opened()
        assert isinstance(failed, Failed) and failed.fatal and "said nothing for 0.3 s" in failed.message
        heard.worker.close()
    refused = Heard(url)
    failed = refused.opened()
    assert "cannot be reached: connection refused." in failed.message and failed.fix == "Is it running?"
    refused.worker.close()


@pytest.mark.parametrize("page", ["<html>hello</html>", "[]"])
def test_what_is_no_such_server(page: str) -> None:
    with serving({"/v1/models": lambda h: h.text(page)}) as fake, talking(fake) as heard:
        assert "something else than JSON" in heard.opened().message
    with serving({}) as fake, talking(fake) as heard:
        assert "status 404" in heard.opened().message


def test_stop_in_mid_reply_closes_the_connection() -> None:
    with serving({"/v1/models": VLLM, CHAT: endless}) as fake, talking(fake) as heard:
        heard.opened()
        heard.worker.cancel()  # without a reply: nothing
        heard.worker.say(asking())
        for _ in range(3):
            heard.until(Round)
        heard.worker.cancel()
        ended = heard.until(Finished)
        assert ended.reason == "cancelled"
        assert heard.text.startswith("word0 word1 word2 ")
        assert fake.dropped.wait(3.0)  # the server learns of it
        fake.routes[CHAT] = HELLO
        assert heard.reply().reason == "stop"


def test_stop_before_the_reply_began_and_in_silence() -> None:
    with serving({"/v1/models": VLLM, CHAT: stream(5.0)}) as fake, talking(fake) as heard:
        heard.opened()
        heard.worker.say(asking())
        heard.worker.cancel()
        assert heard.until(Finished).reason == "cancelled"
        heard.worker.say(asking())
        time.sleep(0.2)
        started = time.monotonic()
        heard.worker.cancel()
        ended = heard.until(Finished)
        assert (ended.reason, ended.usage.told.generated_tokens) == ("cancelled", None)
        assert time.monotonic() - started < 2.0


def test_replies_wait_for_their_turn() -> None:
    with serving({"/v1/models": VLLM, CHAT: HELLO}) as fake:
        heard = Heard(fake.url)
        heard.worker.say(asking("before Ready"))
        heard.worker.say(asking("and another"))
        heard.until(Finished)
        heard.until(Finished)
        kinds = [type(e) for e in heard.events if not isinstance(e, Loading)]
        assert kinds == [Ready, Round, Round, Finished, Round, Round, Finished]
        assert [s.body["messages"][0]["content"] for s in fake.asked(CHAT)] == ["before Ready", "and another"]
        heard.worker.close()


def test_a_server_that_died_and_came_back() -> None:
    with serving({"/v1/models": VLLM, CHAT: HELLO}) as fake:
        heard = Heard(fake.url)
        heard.opened()
        assert isinstance(heard.reply(), Finished)
    assert "cannot be reached" in heard.reply().message
    with serving({"/v1/models": VLLM, CHAT: HELLO}, port=fake.port):
        assert isinstance(heard.reply(), Finished)
        assert heard.text == "Hello."
        heard.worker.close()


def test_restart_in_mid_reply_and_close() -> None:
    with serving({"/v1/models": VLLM, CHAT: endless}) as fake, talking(fake) as heard:
        heard.opened()
        heard.worker.say(asking())
        heard.until(Round)
        heard.worker.restart()
        heard.opened()  # rounds that were on their way may come before it, and none after
        assert heard.quiet()
        assert heard.worker.alive
        heard.worker.say(asking())
        heard.until(Round)
        started = time.monotonic()
        heard.worker.close()
        assert time.monotonic() - started < 2.0
        assert not heard.worker.alive
        while not heard.quiet(0.1):
            pass
        assert not any(isinstance(e, Failed) for e in heard.events)
        with pytest.raises(WorkerError):
            heard.worker.start()


def test_nothing_is_sent_to_another_host() -> None:
    with serving({"/v1/models": VLLM}) as other:
        away = lambda h: h.text("", 307, {"Location": f"http://localhost:{other.port}{CHAT}"})  # noqa: E731
        with serving({"/v1/models": VLLM, CHAT: away}) as fake, talking(fake, key="sk-test-1") as heard:
            heard.opened()
            failed = heard.reply()
            assert "sends the request on to localhost, which is refused" in failed.message
        assert other.seen == []
        assert {s.headers["authorization"] for s in fake.seen} == {"Bearer sk-test-1"}


def test_a_redirect_within_the_host_is_followed_but_not_in_circles() -> None:
    routes = {"/v1/models": VLLM, CHAT: lambda h: h.text("", 307, {"Location": "/moved"}), "/moved": HELLO}
    with serving(routes) as fake, talking(fake) as heard:
        heard.opened()
        assert isinstance(heard.reply(), Finished)
        assert fake.asked("/moved")[0].body["stream"] is True
        routes["/moved"] = lambda h: h.text("", 307, {"Location": "/moved"})
        assert "circles" in heard.reply().message


def test_the_environments_proxy_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({}) as proxy, serving({"/v1/models": VLLM, CHAT: HELLO}) as fake:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        with talking(fake) as heard:
            heard.opened()
            assert isinstance(heard.reply(), Finished)
        assert proxy.seen == []


def test_every_request_goes_to_the_one_host() -> None:
    asked: list[httpx.URL] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url)
        if request.url.path == "/base/v1/models":
            return httpx.Response(200, json={"data": [{"id": "gemma", "owned_by": "vllm"}]})
        if request.url.path == f"/base{CHAT}":
            return httpx.Response(200, content=event(delta("Hi")) + event(delta(None, "stop")) + DONE)
        return httpx.Response(404)

    events: list[Event] = []
    options = ServerOptions("https://gpu.example:8443/base/v1", timeouts=SHORT)
    worker = RemoteWorker(options, events.append, transport=httpx.MockTransport(answer))
    worker.start()
    worker.say(Say((Message("user", "Hi"),), Controls()))
    deadline = time.monotonic() + 5
    while not any(isinstance(e, Finished | Failed) for e in events) and time.monotonic() < deadline:
        time.sleep(0.01)
    worker.close()
    assert isinstance(events[-1], Finished)
    assert {(u.scheme, u.host, u.port) for u in asked} == {("https", "gpu.example", 8443)}
    assert {u.path for u in asked} == {"/base/v1/models", f"/base{CHAT}", "/base/metrics"}


def test_certificates_are_checked() -> None:
    context = certificates()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(context.get_ca_certs()) > 10
    with serving({"/v1/models": VLLM}) as fake:  # it speaks no TLS
        heard = Heard(fake.url.replace("http", "https"))
        assert "cannot be reached" in heard.opened().message
        heard.worker.close()


def test_a_mistake_of_ours_leaves_nobody_waiting() -> None:
    def wrong(request: httpx.Request) -> httpx.Response:
        raise KeyError("sk-test-4")

    events: list[Event] = []
    worker = RemoteWorker(ServerOptions("http://h:1"), events.append, transport=httpx.MockTransport(wrong))
    worker.start()
    deadline = time.monotonic() + 5
    while worker.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    failed = events[-1]
    assert isinstance(failed, Failed) and failed.fatal
    assert "KeyError" in failed.message and "sk-test-4" not in repr(failed)
    worker.close()


def test_the_key_is_in_no_message() -> None:
    echo = lambda h: h.json({"error": {"message": f"wrong key {h.headers['Authorization']}"}}, 401)  # noqa: E731
    inside = stream(event({"error": {"message": "no sk-test-2 here"}}))
    with serving({"/v1/models": VLLM, CHAT: echo}) as fake, talking(fake, key="sk-test-2") as heard:
        heard.opened()
        assert "wrong key Bearer (the key)" in heard.reply().message
        fake.routes[CHAT] = inside
        assert "no (the key) here" in heard.reply().message
        assert "sk-test-2" not in repr(heard.events)
