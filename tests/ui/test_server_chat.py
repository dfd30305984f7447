"""The chat on a server: pieces instead of rounds, what is told and what is not, what is kept, and the key."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from driving import CONTROLS, Driver, running
from fake_server import DONE, SHORT, FakeServer, delta, endless, event, models, serving, stream
from fake_worker import INFO

from eagle3chat.engine.events import Burst, Finished, Ready, Round, Told, Usage
from eagle3chat.engine.remote_options import ServerOptions
from eagle3chat.engine.requests import PairOptions
from eagle3chat.serving import factory
from eagle3chat.transcript import Transcript, load, to_messages
from eagle3chat.transcript_html import page
from eagle3chat.ui.app import ChatApp
from eagle3chat.ui.widgets.keys import Keys
from eagle3chat.ui.widgets.meter import Meter

CHAT = "/v1/chat/completions"
REMOTE = replace(
    INFO,
    draft="",
    backend="vLLM",
    device="gpu:8000",
    dtype="",
    capacity=0,
    max_chain=0,
    default_chain=0,
    unavailable="The server sets its chain when it is started",
    fixed_chain="The server sets its chain when it is started",
    adjusts=False,
    unknown=("draft", "dtype", "memory_bytes", "capacity"),
)
TOLD = Told("vLLM's summary", False, 12, 0, 9, 4, 8, 5, 2.25, (3, 2))


def burst(index: int, text: str, tokens: int | None, position: int = 0) -> Round:
    return Round(index, position, 0, 0.8, (), 0, None, None, (), text, 0.02, burst=Burst(tokens))


def ended(told: Told, *notes: str) -> Finished:
    count = told.generated_tokens or 0
    return Finished("stop", "", "", Usage(12, 0, count, 0, 0, 0, 0, (), (), (), 0.1, 1.0, 0.1, told), notes)


async def test_a_reply_is_shown_in_pieces_and_with_what_was_told():
    async with running((120, 30), start=[Ready(REMOTE)]) as driver:
        assert "context not known" in driver.lines()[0]
        assert any("draft not known" in line for line in driver.lines())
        assert "chain: the server's" in driver.line_with("T 0.8")
        await driver.say("go")
        await driver.emit(burst(0, "One two", 3, 12), burst(1, " three", 5, 15))
        assert "2 pieces" in driver.line_with("T 0.8") and "tau" not in driver.line_with("T 0.8")
        assert " three" in driver.line_with("5 tokens")
        await driver.emit(ended(TOLD, "SGLang does not apply min-p."))
        meter = driver.line_with("T 0.8")
        assert "tau 2.25" in meter and "1 █ .75" not in meter and ".75" in meter and ".67" in meter
        under = driver.line_with("5 of 8 drafts accepted")
        assert "9 tokens" in under and "4 rounds" in under and "by place .75 .67" in under
        assert driver.line_with("by vLLM's summary")
        assert driver.line_with("SGLang does not apply min-p.")
        assert driver.shown() == "One two three"


async def test_what_is_not_told_is_not_shown_as_zero():
    async with running((120, 30), start=[Ready(replace(REMOTE, capacity=99, unknown=("draft",)))]) as driver:
        await driver.say("go")
        await driver.emit(burst(0, "Hi", None), ended(Told()))
        assert "tokens not known" in driver.line_with("speculation not known")
        assert "tau not known" in driver.line_with("T 0.8") and "tok/s" not in driver.line_with("T 0.8")
        assert "context not known / 99" in driver.lines()[0]
        assert not any("0 tokens" in line or "tau 0" in line for line in driver.lines())


async def test_the_chain_is_the_servers_and_stays_as_it_was_asked_for():
    async with running((120, 30), start=[Ready(REMOTE)]) as driver:
        for keys, command in (("f9", ""), ("f7", ""), ("", "/chain 2"), ("", "/chain auto")):
            await (driver.pilot.press(keys) if keys else driver.say(command))
            await driver.pilot.pause()
            assert "The chain cannot be set. The server sets its chain" in driver.notice
        assert driver.app.chat.controls.chain == 3
        keys, meter = driver.app.query_one(Keys), driver.app.query_one(Meter)
        keys.tell("")
        keys.show_hint("")
        assert "chain" not in keys.line(120).plain and "F1 help" in keys.line(120).plain
        line = meter.line(120)
        greyed = [line.plain[span.start : span.end] for span in line.spans if "quiet" in str(span.style)]
        assert "chain: the server's" in greyed
        await driver.say("go")
        await driver.pilot.press("ctrl+t")
        assert "next reply" in driver.notice
        await driver.emit(burst(0, "Hi", 1), ended(TOLD))
        await driver.say("/race")
        assert "nothing to race against: the chain cannot be set" in driver.notice


async def test_inspector_and_trace_say_what_cannot_be_seen():
    async with running((140, 30), start=[Ready(REMOTE)]) as driver:
        await driver.say("go")
        await driver.emit(burst(0, "Hi", 2), burst(1, " you", None), ended(TOLD))
        await driver.pilot.press("f4")
        await driver.pilot.pause()
        assert driver.line_with("not visible through a server")
        assert driver.line_with("a number of tokens that it did not tell")
        await driver.pilot.press("escape")
        await driver.pilot.pause()
        await driver.say("/trace 1")
        await driver.until(lambda: any("drafts not visible" in line for line in driver.lines()))
        assert "2 pieces" in driver.line_with("reply 1 of 1") and driver.line_with("Hi you")
        await driver.pilot.press("escape")


@asynccontextmanager
async def on_server(fake: FakeServer, transcript: Transcript | None = None, **options: Any) -> AsyncIterator[Driver]:
    server = ServerOptions(fake.url, timeouts=SHORT, **options)
    app = ChatApp(PairOptions(), CONTROLS, worker_factory=factory(server), transcript=transcript)
    async with app.run_test(size=(120, 34)) as pilot:
        driver = Driver(app, pilot, None)  # type: ignore[arg-type]
        await driver.until(lambda: app.chat.phase != "loading")
        try:
            yield driver
        finally:
            app.link.close()
            app.record.close()


THOUGHT = stream(
    event(delta(reasoning="hm ")),
    event(delta(reasoning="yes")),
    event(delta("Hello", usage={"prompt_tokens": 5, "completion_tokens": 6})),
    event(delta(None, "stop")),
    DONE,
)


async def test_a_conversation_with_a_server_is_kept_and_goes_on(tmp_path: Path):
    transcript = Transcript.create(tmp_path)
    routes = {"/v1/models": models("vllm", max_model_len=4096), CHAT: THOUGHT}
    with serving(routes) as fake:
        async with on_server(fake, transcript, key="sk-test-3") as driver:
            await driver.say("go")
            await driver.until(lambda: driver.app.chat.phase == "idle")
            await driver.pilot.pause()
            assert "Hello" in driver.shown() and "<think>" not in driver.shown()
            fake.routes[CHAT] = stream(event(delta("And half")), "reset")
            await driver.say("more")
            await driver.until(lambda: driver.app.chat.phase == "idle")
            assert driver.line_with("broke off") and driver.line_with("not finished")
            fake.routes[CHAT] = stream(event(delta(" a reply")), event(delta(None, "stop")), DONE)
            await driver.say("/continue")
            await driver.until(lambda: driver.app.chat.phase == "idle")
        sent = fake.asked(CHAT)
        assert [m["content"] for m in sent[1].body["messages"]] == ["go", "Hello", "more"]
        assert sent[2].body["continue_final_message"] is True
        assert sent[2].body["messages"][-1] == {"role": "assistant", "content": "And half"}
    conversation = load(transcript.path)
    assert [m.content for m in to_messages(conversation)][-1] == "And half a reply"
    assert all(m.token_ids is None for m in to_messages(conversation, INFO))
    html = page(conversation)
    assert "chain of the server" in html
    kept = [Path(base) / name for base, _, names in os.walk(tmp_path) for name in names]
    assert kept and not any(b"sk-test-3" in path.read_bytes() for path in kept)


async def test_stop_and_restart():
    routes = {"/v1/models": models("vllm"), CHAT: endless}
    with serving(routes) as fake:
        async with on_server(fake) as driver:
            await driver.say("go")
            await driver.until(lambda: "word3" in driver.shown())
            await driver.pilot.press("escape")
            await driver.until(lambda: driver.app.chat.phase == "idle")
            assert driver.line_with("stopped by you")
            assert fake.dropped.wait(3.0)
            await driver.say("again")
            await driver.until(lambda: driver.app.chat.phase == "replying")
            await driver.pilot.press("f5")
            await driver.until(lambda: driver.app.chat.phase == "idle")
            assert driver.line_with("not finished")


async def test_a_server_that_is_not_there():
    with serving({}) as fake:
        pass
    async with on_server(fake) as driver:
        assert driver.app.chat.phase == "down"
        await driver.pilot.pause()
        assert driver.line_with("cannot be reached")
