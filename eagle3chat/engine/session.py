"""One conversation on one pair: messages in, events out, caches reused between turns.

Not thread-safe: the worker, or a headless command, owns it and calls it on one thread. Knows no tensors
and no screen.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence

from eagle3chat.engine.backend import Backend, D, Verdict, Worth
from eagle3chat.engine.chain import Chain
from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.events import Finished, FinishReason, OwnKind, Prefill, Round, Token
from eagle3chat.engine.pair import Pair, check_prompt
from eagle3chat.engine.plan import Length, Plan, Seen
from eagle3chat.engine.requests import Controls, Say
from eagle3chat.engine.speculate import Step, agreed, speculate
from eagle3chat.engine.stopping import Stopping
from eagle3chat.engine.tally import Tally
from eagle3chat.engine.text import Codec, ReplyText


class Session:
    """Decodes replies one after the other.

    Args:
        pair: An open pair; the session uses it alone and does not close it.
        length: What is known of the pair's best length; None: nothing yet.
    """

    def __init__(self, pair: Pair, length: Length | None = None) -> None:
        self._pair = pair
        self._length = length or open_length(pair.backend)
        self._found: tuple[Controls, dict[int, Controls]] | None = None  # as asked, and with each chain that was found
        self._plan = Plan(0, "")  # of the round at hand; without a reason: the chain was set
        self._committed: list[int] = []  # ids that the caches stand for, the anchor last
        self._cancelled = False
        self._controls = Controls(min(3, pair.backend.max_chain))

    @property
    def controls(self) -> Controls:
        """What the next round runs under. Setting it acts at the next round, also while a reply streams.

        Raises:
            SettingError: The chain is above what the pair can draft.
        """
        return self._controls

    @controls.setter
    def controls(self, controls: Controls) -> None:
        if not controls.auto:
            check_chain(controls.chain, self._pair)
        self._controls = controls

    @property
    def committed(self) -> tuple[int, ...]:
        """The token ids that the caches stand for, the anchor last."""
        return tuple(self._committed)

    def cancel(self) -> None:
        """End the running reply before its next round; what was emitted stays."""
        self._cancelled = True

    def reply(self, say: Say) -> Iterator[Prefill | Round | Finished]:
        """Decode one reply.

        Yields:
            Prefill events, one Round a round, one Finished.

        Raises:
            PromptError: The prompt is empty or does not fit the context.
            SettingError: A control is out of range, or the length limit is below 1.
        """
        started = time.perf_counter()
        self.controls = say.controls
        self._cancelled = False
        if say.max_new_tokens is not None and say.max_new_tokens < 1:
            raise SettingError(f"A reply of at most {say.max_new_tokens} tokens is empty.", "Ask for 1 or more.")
        prompt = self._pair.prompt_ids(say)
        check_prompt(len(prompt), self._pair.backend.capacity)
        keep = reusable(self._committed, prompt)
        self._length.begin()
        tally = Tally(len(prompt), keep, started)
        yield from self._prefill(prompt, keep, tally)
        tally.prefilled()
        if self._cancelled:
            yield Finished("cancelled", "", "", tally.usage())
            return
        limit = self._pair.backend.capacity + 1 - len(prompt)
        reader = begun_text(say, self._pair)
        yield from self._decode(tally, reader, min(limit, say.max_new_tokens or limit), say.max_new_tokens)

    def _prefill(self, prompt: Sequence[int], keep: int, tally: Tally) -> Iterator[Prefill]:
        """Cache the prompt; at each yield `_committed` is what the caches hold. The backend may keep fewer rows."""
        total = len(prompt) - 1
        self._committed = list(prompt[: keep + 1])
        yield Prefill(keep, total, keep)
        for done in self._pair.backend.prefill(prompt, keep):
            self._committed = list(prompt[: done + 1])
            if done < keep:
                keep = done
                tally.reused(keep)
            yield Prefill(done, total, keep)
            if self._cancelled:
                return
        self._committed = list(prompt)

    def _next_controls(self) -> Controls:
        """The next round's; with `auto` the chain is found here."""
        if not self._controls.auto:
            self._plan = Plan(self._controls.chain, "")
            return self._controls
        self._plan = self._length.plan(sampled=self._controls.sampling.temperature > 0.0)
        if self._found is None or self._found[0] is not self._controls:
            self._found = self._controls, {}
        found, chain = self._found[1], self._plan.chain
        if chain not in found:
            found[chain] = dataclasses.replace(self._controls, chain=chain)
        return found[chain]

    def _worth(self) -> Worth | None:
        return self._plan.worth

    def _decode(self, tally: Tally, reader: ReplyText, limit: int, asked: int | None) -> Iterator[Round | Finished]:
        pair = self._pair
        text, stop = "", ""

        def cut(offered: tuple[int, ...]) -> tuple[int, bool]:
            nonlocal text, stop
            taken = reader.take(offered)
            text, stop = taken.text, taken.stop
            return taken.kept, taken.ended

        for step in speculate(pair.backend, len(self._committed), self._next_controls, cut, limit, self._worth):
            self._committed.extend(step.tokens)
            tally.add(step)
            if step.finish in ("length", "context"):
                text += reader.rest()
            if step.controls.auto:
                learn(self._length, step)
            yield round_event(step, text, pair.codec, self._plan.why)
            if step.finish:
                # The context ended it, not a limit that somebody asked for.
                reason: FinishReason = "context" if step.finish == "length" and limit != asked else step.finish
                yield Finished(reason, stop, "", tally.usage())
            elif self._cancelled:
                yield Finished("cancelled", "", reader.rest(), tally.usage())
                return


def begun_text(say: Say, pair: Pair) -> ReplyText:
    """The text of a reply, as far as the request has it: half a character or half a stop string goes on."""
    reader = ReplyText(pair.codec, pair.stops)
    last = say.messages[-1]
    if last.role == "assistant" and last.token_ids and reader.take(last.token_ids).ended:
        return ReplyText(pair.codec, pair.stops)
    return reader


def open_length(backend: Backend[D]) -> Length:
    """What finds the length of a backend's chains."""
    longest = backend.max_chain
    return Stopping(longest) if backend.early and longest else Chain(longest)


def learn(length: Length, step: Step) -> None:
    """Tell what a round cost and kept."""
    verdict = step.verdict
    drafted = len(verdict.drafted)
    right = agreed(verdict) if drafted else 0
    length.saw(Seen(verdict.draft_p, right, min(drafted, right + 1), step.seconds, step.drafting))


def check_chain(chain: int, pair: Pair) -> None:
    """Raise SettingError when the pair cannot draft that many tokens."""
    longest = pair.backend.max_chain
    if chain > longest:
        why = pair.info.unavailable or "this bundle has no draft"
        fix = f"Use 0 (plain decoding) to {longest}." if longest else f"Use 0: {why}."
        raise SettingError(f"A chain of {chain} tokens is above the maximum.", fix)


def reusable(committed: Sequence[int], prompt: Sequence[int]) -> int:
    """Rows of both caches that a new prompt can keep.

    One less than the common prefix: the draft row at the border pairs with a token that changed. And at
    least one row is computed anew, because the first proposal needs its feature.
    """
    common = 0
    for old, new in zip(committed, prompt, strict=False):
        if old != new:
            break
        common += 1
    return max(0, min(common - 1, len(committed) - 1, len(prompt) - 2))


def round_event(step: Step, text: str, codec: Codec, why: str = "") -> Round:
    """The event of a committed round; `why`: its chain's length was found."""
    verdict = step.verdict
    row, text_of = step.accepted, codec.token_text
    both = zip(verdict.drafted, verdict.draft_p, verdict.target_p, strict=True)
    drafted = tuple([Token(token, text_of(token), draft_p, target_p) for token, draft_p, target_p in both])
    own = Token(step.tokens[-1], text_of(step.tokens[-1]), None, verdict.chosen_p[row]) if step.own else None
    considered = tuple([Token(token, text_of(token), None, p) for token, p in verdict.runners_up[row]])
    return Round(
        index=step.index,
        position=step.position,
        chain=len(drafted) if why else step.controls.chain,
        temperature=step.controls.sampling.temperature,
        drafted=drafted,
        accepted=step.accepted,
        own=own,
        own_kind=own_kind(step, verdict),
        considered=considered,
        text=text,
        seconds=step.seconds,
        draft_seconds=verdict.draft_seconds,
        verify_seconds=verdict.verify_seconds,
        why=why,
    )


def own_kind(step: Step, verdict: Verdict) -> OwnKind | None:
    """What the target's own token of a round is; None when the round was cut before it."""
    if not step.own:
        return None
    if not verdict.drafted:
        return "plain"
    return "bonus" if step.accepted == len(verdict.drafted) else "correction"
