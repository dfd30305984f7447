"""The rules of the conversation, without a screen."""

import pytest
from fake_worker import INFO, finished, rounds_of, stop_round, token, tokens_of, usage_of, whole_reply

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.events import Finished, Round
from eagle3chat.engine.requests import Controls, Message
from eagle3chat.engine.sampling import Sampling
from eagle3chat.ui.chat import Chat
from eagle3chat.ui.commands import changed, is_command, parse
from eagle3chat.ui.figures import under_reply
from eagle3chat.ui.tally import Tally


def replied(reason="stop", stop="<|im_end|>", words="Yes, it does."):
    chat = Chat(Controls(), system="Be short.")
    chat.info = INFO
    chat.phase = "idle"
    say = chat.say("Does it?")
    rounds = [*rounds_of(tokens_of(words))]
    if stop == "<|im_end|>" and reason == "stop":
        rounds.append(stop_round(rounds))
    for round_ in rounds:
        chat.add(round_)
    unanswered = chat.end_reply(Finished(reason, stop if reason == "stop" else "", "", usage_of(rounds)))
    return chat, say, rounds, unanswered


def test_a_reply_is_kept_without_its_stop_token():
    chat, say, rounds, unanswered = replied()
    assert say.messages == (Message("system", "Be short."), Message("user", "Does it?"))
    ids = tuple(t.id for r in rounds for t in r.tokens)
    assert chat.messages[-1] == Message("assistant", "Yes, it does.", ids[:-1])
    assert unanswered == ""
    chat.phase = "idle"
    assert chat.say("And?").messages[2].token_ids == ids[:-1]


def test_a_reply_that_was_cut_keeps_all_its_tokens():
    for reason in ("length", "cancelled", "context"):
        chat, _, rounds, _ = replied(reason)
        assert chat.messages[-1].token_ids == tuple(t.id for r in rounds for t in r.tokens)


def test_a_stop_string_drops_the_ids():
    chat, *_ = replied("stop", "\nUser:")
    assert chat.messages[-1] == Message("assistant", "Yes, it does.", None)


def test_a_message_without_an_answer_is_taken_back():
    chat = Chat(Controls())
    chat.phase = "idle"
    chat.say("Too long")
    assert chat.end_reply(None) == "Too long"
    assert chat.messages == ()


def test_context_in_use():
    chat, _, rounds, _ = replied()
    assert chat.used == 40 + sum(r.emitted for r in rounds)


def test_a_new_conversation_has_a_new_seed():
    chat, *_ = replied()
    seed = chat.controls.sampling.seed
    chat.renew()
    assert (chat.messages, chat.used) == ((), 0)
    assert chat.controls.sampling.seed != seed


def test_a_seed_that_was_asked_for_stays():
    chat = Chat(Controls(2, Sampling(seed=5)), keep_seed=True)
    chat.renew()
    assert chat.controls == Controls(2, Sampling(seed=5))


@pytest.mark.parametrize("chain", [0, 1, 3, 5])
def test_the_tally_counts_as_usage_does(chain):
    rounds = rounds_of(tokens_of("a b c d e f g h i j k l m n o p"), chain=chain)
    tally = Tally()
    for round_ in rounds:
        tally.add(round_)
    usage = usage_of(rounds)
    assert (tally.rounds, tally.emitted, tally.accepted, tally.rejected) == (
        usage.rounds,
        usage.generated_tokens,
        usage.accepted,
        usage.rejected,
    )
    assert tally.tau == pytest.approx(usage.tau)
    assert tally.tokens_per_second == pytest.approx(usage.tokens_per_second)
    assert [x or 0.0 for x in tally.conditional] == pytest.approx(list(usage.conditional_acceptance))


def test_a_chain_of_one_then_three():
    tally = Tally()
    for round_ in [*rounds_of([" a", " b"], chain=1), *rounds_of([" a", " b", " c", " d"], chain=3)]:
        tally.add(round_)
    assert tally.reached_at == [2, 1, 1]
    assert tally.conditional == [1.0, 1.0, 1.0]


def test_under_a_reply():
    events = whole_reply("a b c d e f g")
    parts = under_reply(events[-1])
    assert parts[:3] == ["8 tokens", "4 rounds", "tau 2.00"]
    assert parts[-1] == "stopped at <|im_end|>"
    assert "of" in parts[3]
    plain = under_reply(finished(rounds_of([" a", " b"], chain=0), "length"))
    assert plain == ["2 tokens", "2 rounds", "tau 1.00", "plain decoding", "48 tok/s", "stopped at the length limit"]
    assert under_reply(finished([], "cancelled")) == ["stopped by you"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/frob", "no command /frob"),
        ("/chain", "needs a value"),
        ("/chain x", "whole number"),
        ("/chain -1", "-1 tokens does not exist"),
        ("/chain 7", "Use 0 to 6"),
        ("/temp -1", "temperature of -1"),
        ("/temp nan", "temperature of nan"),
        ("/temp warm", "takes a number"),
        ("/topp 0", "top-p of 0"),
        ("/minp 2", "min-p of 2"),
        ("/seed -1", "seed of -1"),
        ("/penalty 1.1", "Write /penalty repetition 1.1"),
        ("/penalty repetition", "a kind and a number"),
        ("/penalty sharpness 1", "a kind and a number"),
        ("/penalty pres much", "takes a number"),
        ("/penalty repetition 0", "repetition penalty of 0.0"),
        ("/penalty frequency -3", "frequency penalty of -3.0"),
        ("/new now", "takes no value"),
    ],
)
def test_commands_that_cannot_be(text, words):
    with pytest.raises(SettingError, match=words):
        changed(Controls(), (call := parse(text)).command.name, call.argument, INFO)


def test_commands_that_set():
    controls = Controls()
    for text in ("/chain 0", "/temp 1.5", "/topp 0.9", "/topk 40", "/minp 0.05", "/seed 12"):
        call = parse(text)
        controls = changed(controls, call.command.name, call.argument, INFO)
    sampling = controls.sampling
    assert (controls.chain, sampling.temperature, sampling.top_p, sampling.top_k) == (0, 1.5, 0.9, 40)
    assert (sampling.min_p, sampling.seed) == (0.05, 12)
    for text in ("/penalty repetition 1.1", "/penalty pres 0.5", "/penalty f  -0.25"):
        controls = changed(controls, "penalty", parse(text).argument, INFO)
    assert controls.sampling.penalties == (("repetition", 1.1), ("presence", 0.5), ("frequency", -0.25))
    assert changed(controls, "new", "", INFO) is None
    assert parse("/te 0.5").command.name == "temp"


def test_what_is_a_command():
    assert is_command("/temp 1")
    assert is_command("/nonsense")
    for text in ("/usr/bin/env is a file", "/ x", "/", "a /temp", "/temp 1\nmore", "//"):
        assert not is_command(text)


def test_a_round_without_an_own_token():
    tally = Tally()
    tally.add(Round(0, 5, 3, 0.0, (token(" a", True), token(" b", True)), 1, None, None, (), " a", 0.01))
    assert (tally.emitted, tally.rejected, tally.reached_at) == (1, 0, [1, 0])
