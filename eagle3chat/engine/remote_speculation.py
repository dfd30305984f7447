"""What servers tell of speculation in the reply itself, as `Told`.

    vLLM           metrics.speculative_decoding on the usage chunk (0.29 and later)
    SGLang         sglext.spec_tokens_details, by return_spec_tokens_details; meta_info under older names
    llama-server   timings.draft_n, draft_n_accepted; mlx_vlm.server has the same, with draft_rounds
    LM Studio      stats.total_draft_tokens_count, accepted_draft_tokens_count

Accepted counts leave the target's own token out, tau has it in. Knows JSON values, no HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import pairwise

from eagle3chat.engine.events import Told
from eagle3chat.engine.remote_json import Json, count, counts, inner, number

NOTHING = Told()


def told_by(value: Json) -> Told:
    """All that one event of a stream tells about the reply so far."""
    told = NOTHING
    for part in (_usage(value), _vllm(value), _sglang(value), _timings(value), _lmstudio(value)):
        told = joined(told, part)
    return told


def joined(told: Told, more: Told) -> Told:
    """Both, `more` where it knows something."""
    known = {f.name: new for f in fields(Told) if (new := getattr(more, f.name)) is not None}
    if not more.source:  # it has no figures of speculation, so says nothing of where they are from
        known |= {"source": told.source, "shared": told.shared}
    return replace(told, **known)


def drafts(
    source: str,
    *,
    rounds: int | None,
    drafted: int | None,
    accepted: int | None,
    tau: float | None = None,
    accepted_at: tuple[int, ...] | None = None,
    shared: bool = False,
) -> Told:
    """Figures of speculation that agree with each other; NOTHING without any.

    Some servers count tokens past the end of the text, or count the target's own: what cannot be is not known.
    """
    if drafted is not None and accepted is not None:
        accepted = min(accepted, drafted)
    if rounds and accepted is not None:
        tau = 1.0 + accepted / rounds
    if tau is not None and tau < 1.0:
        tau = None
    if accepted_at is not None and not (rounds and _falls((rounds, *accepted_at)) and sum(accepted_at) == accepted):
        accepted_at = None
    if not any((rounds, drafted, tau)):
        return NOTHING  # it did not speculate, or says nothing
    return Told(source, shared, rounds=rounds, drafted=drafted, accepted=accepted, tau=tau, accepted_at=accepted_at)


def _falls(values: Sequence[int]) -> bool:
    return all(a >= b for a, b in pairwise(values))


def places(histogram: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """[K] rounds in which the draft at each place was accepted, from [K+1] rounds by their accepted tokens."""
    if not histogram:
        return None
    return tuple(sum(histogram[place + 1 :]) for place in range(len(histogram) - 1))


def _usage(value: Json) -> Told:
    usage = inner(value, "usage")
    return Told(
        prompt_tokens=count(usage, "prompt_tokens"),
        reused_tokens=count(inner(usage, "prompt_tokens_details"), "cached_tokens"),
        generated_tokens=count(usage, "completion_tokens"),
    )


def _vllm(value: Json) -> Told:
    found = inner(value, "metrics", "speculative_decoding")
    return drafts(
        "vLLM's summary of the reply",
        rounds=count(found, "num_spec_steps"),
        drafted=count(found, "num_draft_tokens"),
        accepted=count(found, "num_accepted_draft_tokens"),
        tau=number(found, "mean_acceptance_length"),
        accepted_at=places(counts(found, "acceptance_histogram")),
    )


def _sglang(value: Json) -> Told:
    found = inner(value, "sglext", "spec_tokens_details") or inner(value, "meta_info")
    return drafts(
        "SGLang's details of the reply",
        rounds=count(found, "spec_verify_ct"),
        drafted=count(found, "spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"),
        accepted=count(found, "spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"),
        tau=number(found, "spec_accept_length"),
        accepted_at=places(counts(found, "spec_correct_drafts_histogram", "spec_accept_histogram")),
    )


def _timings(value: Json) -> Told:
    found = inner(value, "timings")
    if not found:
        return NOTHING
    milliseconds, generated = number(found, "predicted_ms"), count(found, "predicted_n")
    accepted, drafted = count(found, "draft_n_accepted"), count(found, "draft_n")
    rounds = count(found, "draft_rounds")
    if accepted is not None and generated is not None:
        accepted = min(accepted, generated)  # tokens past the end of the text are counted as well
    told = drafts("the server's timings", rounds=rounds, drafted=drafted, accepted=accepted)
    fresh, cached = count(found, "prompt_n"), count(found, "cache_n")
    return replace(
        told,
        prompt_tokens=None if fresh is None or cached is None else fresh + cached,
        reused_tokens=cached,
        generated_tokens=generated,
        decode_seconds=_of_all(milliseconds / 1e3, generated) if milliseconds else None,
    )


def _of_all(seconds: float, tokens: int | None) -> float:
    """Seconds for all tokens, of the seconds after the first one, which comes with the prompt."""
    return seconds * tokens / (tokens - 1) if tokens is not None and tokens > 1 else seconds


def _lmstudio(value: Json) -> Told:
    found = inner(value, "stats")
    return drafts(
        "LM Studio's statistics",
        rounds=None,
        drafted=count(found, "total_draft_tokens_count"),
        accepted=count(found, "accepted_draft_tokens_count"),
    )
