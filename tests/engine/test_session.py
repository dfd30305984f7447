"""Many turns on one pair: text from rounds, caches reused and exact, endings and controls."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from eagle3chat.engine.backend import Worth
from eagle3chat.engine.errors import PromptError, SettingError
from eagle3chat.engine.events import Finished, Prefill, Round
from eagle3chat.engine.pair import Pair, open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.scripted import ScriptedBackend
from eagle3chat.engine.session import Session, reusable

WARM = Sampling(temperature=1.0, seed=3)


def pair(**options: object) -> Pair:
    return open_pair(PairOptions(backend="scripted", **options))  # type: ignore[arg-type]


@pytest.fixture
def session() -> Iterator[Session]:
    opened = pair()
    yield Session(opened)
    opened.close()


def ask(text: str, *, chain: int = 3, sampling: Sampling = WARM, limit: int | None = 60, raw: bool = False) -> Say:
    return Say((Message("user", text),), Controls(chain, sampling), limit, raw)


def reply_of(session: Session, say: Say) -> tuple[str, tuple[int, ...], Finished, list[Round]]:
    events = list(session.reply(say))
    rounds = [event for event in events if isinstance(event, Round)]
    finished = events[-1]
    assert isinstance(finished, Finished)
    text = "".join(event.text for event in rounds) + finished.text
    return text, tuple(token.id for event in rounds for token in event.tokens), finished, rounds


def backend_of(session: Session) -> ScriptedBackend:
    backend = session._pair.backend
    assert isinstance(backend, ScriptedBackend)
    return backend


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
def test_the_text_is_the_same_for_every_chain(temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=8)
    replies = {reply_of(Session(pair()), ask("Hello", chain=k, sampling=sampling))[:2] for k in (0, 1, 2, 3, 5, 8)}
    assert len(replies) == 1


def test_round_texts_are_the_decoded_reply(session: Session) -> None:
    for seed in range(6):
        text, ids, finished, _ = reply_of(session, ask("Hi", sampling=Sampling(temperature=1.4, seed=seed), limit=80))
        kept = ids[:-1] if finished.reason == "stop" else ids
        assert text == session._pair.codec.decode(kept)


def test_controls_act_at_the_next_round(session: Session) -> None:
    chains = itertools.cycle((0, 2, 5, 1, 3))
    asked: list[int] = [3]
    seen: list[int] = []
    plain = reply_of(Session(pair()), ask("Hello", chain=0))
    text = ""
    for event in session.reply(ask("Hello")):
        if isinstance(event, Round):
            seen.append(event.chain)
            text += event.text
            asked.append(next(chains))
            session.controls = Controls(asked[-1], WARM)
    assert seen == asked[: len(seen)]
    assert text == plain[0]


def test_a_second_turn_reuses_the_first_and_equals_a_fresh_session(session: Session) -> None:
    text, ids, finished, _ = reply_of(session, ask("Tell me", limit=40))
    history = ids[:-1] if finished.reason == "stop" else ids
    turns = (Message("user", "Tell me"), Message("assistant", text, history), Message("user", "More"))
    second = Say(turns, Controls(3, WARM), 40)
    again = reply_of(session, second)
    fresh = reply_of(Session(pair()), second)
    assert again[:2] == fresh[:2]
    usage = again[2].usage
    assert usage.reused_tokens > len(history)
    assert usage.reused_tokens < usage.prompt_tokens
    assert [r.drafted for r in again[3]] == [r.drafted for r in fresh[3]], "the draft's state as well"


def test_edits_and_regenerations_equal_a_fresh_session(session: Session) -> None:
    chance = random.Random(1)
    prompts = ["Tell me a story", "Tell me a song", "Tell", "Tell me a story", "Another thing entirely"]
    for prompt in prompts * 2:
        say = ask(prompt, chain=chance.randrange(5), sampling=Sampling(temperature=1.0, seed=chance.randrange(99)))
        assert reply_of(session, say)[:2] == reply_of(Session(pair()), say)[:2]


def test_the_caches_equal_the_transcript_after_every_event(session: Session) -> None:
    prompt = session._pair.prompt_ids(ask("Hello"))
    emitted: list[int] = []
    for event in session.reply(ask("Hello")):
        if isinstance(event, Round):
            emitted += [token.id for token in event.tokens]
            assert list(session.committed) == prompt + emitted
            assert list(backend_of(session).cached) == (prompt + emitted)[:-1]


@pytest.mark.parametrize("stop_after", range(12))
def test_cancel_at_any_event_leaves_a_session_that_goes_on_like_a_fresh_one(stop_after: int) -> None:
    session = Session(pair())
    long_prompt = "word " * 60  # several prefill chunks
    text, ended = "", None
    for i, event in enumerate(session.reply(ask(long_prompt))):
        if isinstance(event, Round):
            text += event.text
        if isinstance(event, Finished):
            ended, text = event, text + event.text
        elif i == stop_after:
            session.cancel()
    assert ended is not None and ended.reason == "cancelled"
    assert ended.usage.rounds == 0 or text
    say = ask(long_prompt + "more")
    assert reply_of(session, say)[:2] == reply_of(Session(pair()), say)[:2]


@pytest.mark.parametrize("leave_after", range(10))
def test_a_listener_who_leaves_does_no_harm(leave_after: int) -> None:
    session = Session(pair())
    say = ask("word " * 60)
    events = session.reply(say)
    for _ in range(leave_after + 1):
        next(events)
    events.close()
    assert reply_of(session, say)[:2] == reply_of(Session(pair()), say)[:2]


def test_a_cancelled_reply_keeps_its_held_back_text() -> None:
    session = Session(pair(stop_strings=("The big model looks at nothing",)))
    text = ""
    for event in session.reply(ask("x", sampling=Sampling(), limit=None)):
        if isinstance(event, Round):
            text += event.text
            ids = session.committed[-event.emitted :]
            shown = session._pair.codec.decode(ids)
            if shown.endswith("model looks") or "model" in shown:
                session.cancel()
        elif isinstance(event, Finished):
            text += event.text
    prompt = session._pair.prompt_ids(ask("x"))
    assert text == session._pair.codec.decode(session.committed[len(prompt) :])


@pytest.mark.parametrize("stop_strings", [(), ("zzz", " and never")])
def test_a_reply_that_goes_on_is_the_reply_that_was_never_stopped(stop_strings: tuple[str, ...]) -> None:
    whole, whole_ids, _, _ = reply_of(Session(pair(stop_strings=stop_strings)), ask("Hello", limit=40))
    for limit in (1, 7, 22):
        session = Session(pair(stop_strings=stop_strings))
        _, ids, _, rounds = reply_of(session, ask("Hello", limit=limit))
        begun = Message("assistant", "".join(r.text for r in rounds), ids)
        say = Say((Message("user", "Hello"), begun), Controls(3, WARM), 40 - limit)
        rest, rest_ids, finished, more = reply_of(session, say)
        assert (ids + rest_ids) == whole_ids
        assert begun.content + rest == whole
        assert more[0].position == rounds[-1].position + rounds[-1].emitted
        assert finished.usage.reused_tokens > 0 or limit == 1
    text_only = Say((Message("user", "Hello"), Message("assistant", "Well, ")), Controls(3, WARM), 5)
    assert reply_of(Session(pair()), text_only)[2].usage.prompt_tokens > 1


def test_a_stop_string_ends_text_and_ids_together() -> None:
    session = Session(pair(stop_strings=(" would have said",)))
    text, ids, finished, rounds = reply_of(session, ask("x", sampling=Sampling(), limit=None))
    assert (finished.reason, finished.stop) == ("stop", " would have said")
    assert text.endswith("the words that it")
    assert session._pair.codec.decode(ids).endswith(" would have said")
    assert finished.usage.generated_tokens == len(ids) == sum(r.emitted for r in rounds)


def test_usage_counts_what_the_rounds_say(session: Session) -> None:
    _, ids, finished, rounds = reply_of(session, ask("Hello", limit=50))
    usage = finished.usage
    assert usage.rounds == len(rounds) and usage.generated_tokens == len(ids)
    assert usage.accepted == sum(r.accepted for r in rounds)
    assert usage.rejected == sum(r.rejected is not None for r in rounds)
    assert usage.unreached == sum(len(r.unreached) for r in rounds)
    assert usage.accepted + usage.rejected + usage.unreached == sum(len(r.drafted) for r in rounds)
    assert usage.tau == len(ids) / len(rounds)
    for place in range(3):
        assert usage.accepted_at[place] == sum(r.accepted > place for r in rounds)
        tested = [r.accepted + (r.rejected is not None) for r in rounds]
        assert usage.reached_at[place] == sum(count > place for count in tested)
        assert usage.drafted_at[place] == sum(len(r.drafted) > place for r in rounds)


def test_kinds_of_the_targets_own_token(session: Session) -> None:
    _, _, _, rounds = reply_of(session, ask("Hello", chain=2, limit=None))
    kinds = {r.own_kind for r in rounds}
    assert kinds >= {"correction", "bonus"}
    for r in rounds:
        if r.own_kind == "correction":
            assert r.own is not None and r.rejected is not None and r.own.id != r.rejected.id
            assert r.own.id in [token.id for token in r.considered] or r.temperature > 0
        if r.own_kind == "bonus":
            assert r.accepted == len(r.drafted) and r.rejected is None and r.unreached == ()
    _, _, _, plain = reply_of(session, ask("Hello", chain=0))
    assert {r.own_kind for r in plain} == {"plain"}


def test_the_context_end_is_reached_and_named() -> None:
    session = Session(pair(context=60))
    prompt = session._pair.prompt_ids(ask("Hello"))
    _, ids, finished, _ = reply_of(session, ask("Hello", sampling=Sampling(), limit=None))
    assert finished.reason == "context"
    assert len(prompt) + len(ids) == 61


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_the_length_limit_is_met_and_named(session: Session, limit: int) -> None:
    _, ids, finished, _ = reply_of(session, ask("Hello", limit=limit))
    assert (finished.reason, len(ids)) == ("length", limit)


def test_bad_requests_are_refused_in_words(session: Session) -> None:
    with pytest.raises(SettingError, match=r"above the maximum\. Use 0 .plain decoding. to 8"):
        list(session.reply(ask("Hello", chain=9)))
    with pytest.raises(SettingError, match="at most 0 tokens"):
        list(session.reply(ask("Hello", limit=0)))
    with pytest.raises(PromptError, match="empty"):
        list(session.reply(ask("", raw=True)))
    with pytest.raises(PromptError, match="context holds 40"):
        list(Session(pair(context=40)).reply(ask("word " * 40)))
    with pytest.raises(SettingError, match="-1 tokens"):
        Controls(-1)
    assert reply_of(session, ask("Hello"))[1], "the session goes on"


@pytest.mark.parametrize(
    ("old", "new", "keep"),
    [
        ((), (1, 2, 3), 0),
        ((1, 2, 3), (1, 2, 3, 4, 5), 2),  # an extension: the anchor's row is new
        ((1, 2, 3, 4, 5), (1, 2, 3, 9, 9, 9), 2),  # the row of 3 pairs with 4, which changed
        ((1, 2, 3, 4, 5), (1, 2, 3, 4, 5), 3),  # the same prompt: one row anew, for its feature
        ((1, 2, 3, 4, 5), (1, 2, 3), 1),
        ((1, 2), (1,), 0),
        ((7,), (1, 2, 3), 0),
    ],
)
def test_reusable_rows(old: tuple[int, ...], new: tuple[int, ...], keep: int) -> None:
    assert reusable(old, new) == keep


def test_prefill_tells_what_is_reused(session: Session) -> None:
    list(session.reply(ask("word " * 50, limit=2)))
    events = [e for e in session.reply(ask("word " * 50 + "again", limit=2)) if isinstance(e, Prefill)]
    assert events[0].done == events[0].reused > 200
    assert events[-1].done == events[-1].total


def test_a_cut_round_counts_its_rest_as_unreached() -> None:
    cut_before_own = 0
    for stop in (" reads", " felt", " guesses", " next", " looks", " pass", " keeps", " drops"):
        session = Session(pair(stop_strings=(stop,)))
        _, _, finished, rounds = reply_of(session, ask("x", chain=8, sampling=Sampling(), limit=None))
        assert finished.stop == stop
        last = rounds[-1]
        if last.own is None and last.accepted < len(last.drafted):
            cut_before_own += 1
            assert last.rejected is None and len(last.unreached) == len(last.drafted) - last.accepted
        assert finished.usage.rejected == sum(r.rejected is not None for r in rounds)
        assert finished.usage.unreached == sum(len(r.unreached) for r in rounds)
    assert cut_before_own > 0


def test_a_chain_that_finds_its_length_says_why_and_changes_no_token() -> None:
    fixed = reply_of(Session(pair()), ask("Hello"))
    auto = Say((Message("user", "Hello"),), Controls(7, WARM, auto=True), 60)
    session = Session(pair())
    text, ids, _, rounds = reply_of(session, auto)
    assert (text, ids) == fixed[:2]
    assert len({event.chain for event in rounds}) > 1  # the first rounds measure
    assert all(event.why for event in rounds) and not any(event.why for event in fixed[3])
    assert all(len(event.drafted) <= event.chain for event in rounds)
    again = reply_of(session, auto)
    assert again[:2] == fixed[:2]
    assert again[3][0].why != "measuring"  # what the reply before has shown is kept


def test_a_draft_that_costs_more_than_it_brings_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each drafted token takes five times as long as a plain round."""
    session = Session(pair())
    now = 0.0

    def spend(chain: int, sampling: Sampling, worth: Worth | None = None) -> object:
        nonlocal now
        draft = ScriptedBackend.draft(backend_of(session), chain, sampling, worth)
        now += 1.0 + 5.0 * draft.chain
        return draft

    monkeypatch.setattr(backend_of(session), "draft", spend)
    monkeypatch.setattr("eagle3chat.engine.speculate.time.perf_counter", lambda: now)
    rounds = reply_of(session, Say((Message("user", "Hello"),), Controls(3, WARM, auto=True), 60))[3]
    assert sum(len(event.drafted) for event in rounds[20:]) <= 4  # it is asked after 4, 8, 16 .. rounds
    assert any(event.why == "drafting costs more than it brings here" for event in rounds)
