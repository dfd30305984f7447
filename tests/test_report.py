"""The report of one reply: keys, figures, and lines."""

from __future__ import annotations

import json
from dataclasses import replace

from eagle3chat.engine.events import Info, Round, Usage
from eagle3chat.engine.requests import Controls
from eagle3chat.engine.sampling import Sampling
from eagle3chat.report import Clock, Reply, RoundTimes, closing_lines, opening_line, stats

INFO = Info("T", "D", "llama", "torch", "cpu", "int4", "chatml", 512, 8, 3, "", ("<end>",), 1.0, 10)
USAGE = Usage(
    prompt_tokens=24,
    reused_tokens=4,
    generated_tokens=75,
    rounds=33,
    accepted=42,
    rejected=27,
    unreached=30,
    reached_at=(33, 22, 14),
    accepted_at=(22, 14, 6),
    drafted_at=(33, 33, 33),
    prefill_seconds=0.25,
    decode_seconds=3.0,
    first_token_seconds=0.3,
)
CLOCK = Clock(1000, 2000, 2001, 2250, 2300, 5300)
REPLY = Reply(
    text="hi",
    token_ids=(1, 2),
    reason="stop",
    stop="<end>",
    usage=USAGE,
    controls=Controls(3, Sampling(temperature=0.8, seed=7)),
    info=INFO,
    clock=CLOCK,
    times=RoundTimes(33, 3.0, draft=0.165, verify=2.97),
)

REFERENCE_KEYS = [
    "prefill_token_per_sec",
    "decode_token_per_sec",
    "prompt_tokens",
    "generated_tokens",
    "model_load_start_ms",
    "model_load_end_ms",
    "inference_start_ms",
    "inference_end_ms",
    "prompt_eval_end_ms",
    "first_token_ms",
    "aggregate_sampling_time_ms",
    "SCALING_FACTOR_UNITS_PER_SECOND",
]


def a_round(draft: float | None, verify: float | None) -> Round:
    return Round(0, 5, 0, 0.0, (), 0, None, None, (), "", 0.5, draft, verify)


def test_the_references_keys_come_first_and_in_its_order() -> None:
    assert list(stats(REPLY))[: len(REFERENCE_KEYS)] == REFERENCE_KEYS
    json.dumps(stats(REPLY), allow_nan=False)


def test_the_figures() -> None:
    figures = stats(REPLY)
    assert figures["prefill_token_per_sec"] == 80.0  # the 20 tokens that were not reused
    assert figures["decode_token_per_sec"] == 25.0
    assert figures["tau"] == round(75 / 33, 4)
    assert figures["acceptance_conditional"] == [round(22 / 33, 4), round(14 / 22, 4), round(6 / 14, 4)]
    assert figures["acceptance_unconditional"] == [round(22 / 33, 4), round(14 / 33, 4), round(6 / 33, 4)]
    assert (figures["round_ms"], figures["draft_ms"], figures["verify_ms"]) == (round(3000 / 33, 3), 5.0, 90.0)
    assert (figures["seed"], figures["temperature"], figures["finish_reason"]) == (7, 0.8, "stop")
    assert (figures["repetition_penalty"], figures["presence_penalty"], figures["frequency_penalty"]) == (1.0, 0.0, 0.0)
    assert figures["SCALING_FACTOR_UNITS_PER_SECOND"] == 1000
    assert (figures["model_load_start_ms"], figures["inference_end_ms"]) == (1000, 5300)


def test_a_place_that_was_never_judged_has_no_conditional_acceptance() -> None:
    usage = replace(USAGE, reached_at=(33, 0, 0), accepted_at=(0, 0, 0), drafted_at=(33, 33, 0))
    figures = stats(replace(REPLY, usage=usage))
    assert figures["acceptance_conditional"] == [0.0, None]  # nothing was drafted at the third place
    assert figures["acceptance_unconditional"] == [0.0, 0.0]


def test_a_reply_that_never_began_has_no_rates() -> None:
    usage = Usage(3, 0, 0, 0, 0, 0, 0, (), (), (), 0.0, 0.0, 0.0)
    empty = replace(REPLY, usage=usage, times=RoundTimes(), reason="cancelled", stop="", clock=Clock(1, 2, 3))
    figures = stats(empty)
    assert (figures["decode_token_per_sec"], figures["round_ms"], figures["first_token_ms"]) == (None, None, None)
    assert closing_lines(empty) == ["generated 0 tokens in 0 rounds (tau=0.000)", "finished: cancelled, seed 7"]


def test_the_lines() -> None:
    assert opening_line(24, Controls(3), 128) == "Prompt tokens: 24, chain K=3, max_new=128"
    assert opening_line(24, Controls(3, auto=True), 128) == "Prompt tokens: 24, chain K=auto, max_new=128"
    assert closing_lines(REPLY) == [
        "[timing] verify=2970ms draft=165ms over 33 rounds (90.0 / 5.0 ms per round)",
        "generated 75 tokens in 33 rounds (tau=2.273)",
        "drafts: 42 of 69 tested were accepted, 30 never reached",
        "decode: 25.00 tok/s (3.000 s)",
        "finished: stop at '<end>', seed 7",
    ]


def test_penalties_that_are_on_are_told() -> None:
    controls = Controls(3, Sampling(seed=7, repetition=1.1, frequency=-0.5))
    reply = replace(REPLY, controls=controls)
    assert closing_lines(reply)[-1].endswith(", seed 7, repetition penalty 1.1, frequency penalty -0.5")
    assert (stats(reply)["repetition_penalty"], stats(reply)["frequency_penalty"]) == (1.1, -0.5)


def test_rounds_that_were_not_timed_apart_say_so() -> None:
    lines = closing_lines(replace(REPLY, times=RoundTimes(10, 0.25)))
    assert lines[0] == "[timing] rounds=250ms over 10 rounds (25.0 ms per round; draft and verify were not timed apart)"


def test_a_sum_of_times_needs_every_round() -> None:
    assert RoundTimes.of([a_round(0.1, 0.3), a_round(0.2, 0.2)]) == RoundTimes(2, 1.0, 0.1 + 0.2, 0.5)
    assert RoundTimes.of([a_round(0.1, 0.3), a_round(None, 0.2)]) == RoundTimes(2, 1.0, None, 0.5)
    assert RoundTimes.of([]) == RoundTimes(0, 0, None, None)
