"""A worker that says what a test tells it to, and rounds made from plain words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from eagle3chat.engine.events import Event, Finished, FinishReason, Info, Prefill, Ready, Round, Token, Usage
from eagle3chat.engine.requests import Controls, PairOptions, Say

INFO = Info(
    model="SmolLM2-135M-Instruct",
    draft="eagle3 draft",
    family="llama",
    backend="torch",
    device="cpu",
    dtype="int4",
    template="chatml",
    capacity=8192,
    max_chain=6,
    default_chain=3,
    unavailable="",
    stops=("<|im_end|>",),
    load_seconds=2.13,
    memory_bytes=431_000_000,
)
STOP = Token(2, "<|im_end|>", None, 0.97)


class FakeWorker:
    """The handle of a worker without a child. Tests call `emit`."""

    def __init__(self, options: PairOptions, on_event: Callable[[Event], None]) -> None:
        self.options = options
        self.emit = on_event
        self.said: list[Say] = []
        self.adjusted: list[Controls] = []
        self.calls: list[str] = []
        self.at_start: list[Event] = [Ready(INFO)]

    def start(self) -> None:
        self.calls.append("start")
        for event in self.at_start:
            self.emit(event)

    def say(self, say: Say) -> None:
        self.said.append(say)

    def adjust(self, controls: Controls) -> None:
        self.adjusted.append(controls)

    def cancel(self) -> None:
        self.calls.append("cancel")

    def restart(self) -> None:
        self.calls.append("restart")
        self.emit(Ready(INFO))

    def close(self, timeout: float = 3.0) -> None:
        self.calls.append("close")


def tokens_of(text: str) -> list[str]:
    """Words with the space before them, punctuation, white space."""
    return re.findall(r" ?\w+| ?[^\w\s]|\s", text)


def token(text: str, drafted: bool = False, p: float = 0.8) -> Token:
    return Token(sum(map(ord, text)) % 50000 + 10, text, p if drafted else None, p)


def rounds_of(
    words: Sequence[str], accepted: Sequence[int] = (3, 1, 2, 0, 3, 2, 1, 3), chain: int = 3, position: int = 40
) -> list[Round]:
    """Rounds that emit the words one after the other, accepting as many of a chain as the pattern says."""
    rounds: list[Round] = []
    at = 0
    while at < len(words):
        took = min(accepted[len(rounds) % len(accepted)], chain, len(words) - at - 1)
        own = words[at + took]
        drafted = [token(word, True) for word in words[at : at + took]]
        drafted += [token(other, True, 0.3) for other in (" the", " and", " it", " of", " a", " so")[: chain - took]]
        kind = "plain" if chain == 0 else "bonus" if took == chain else "correction"
        text = "".join(words[at : at + took + 1])
        rounds.append(
            Round(
                index=len(rounds),
                position=position + at,
                chain=chain,
                temperature=0.8,
                drafted=tuple(drafted),
                accepted=took,
                own=token(own),
                own_kind=kind,
                considered=(token(own, p=0.6), token(" the", p=0.2)),
                text=text,
                seconds=0.021,
            )
        )
        at += took + 1
    return rounds


def stop_round(after: Sequence[Round]) -> Round:
    """A last round that says the stop token and nothing else."""
    last = after[-1]
    return Round(
        index=last.index + 1,
        position=last.position + last.emitted,
        chain=last.chain,
        temperature=0.8,
        drafted=(STOP,) if last.chain else (),
        accepted=1 if last.chain else 0,
        own=None if last.chain else STOP,
        own_kind=None if last.chain else "plain",
        considered=(),
        text="",
        seconds=0.019,
    )


def usage_of(rounds: Sequence[Round], prompt: int = 40) -> Usage:
    accepted = sum(r.accepted for r in rounds)
    rejected = sum(r.rejected is not None for r in rounds)
    longest = max((len(r.drafted) for r in rounds), default=0)
    judged = [r.accepted + (r.rejected is not None) for r in rounds]
    return Usage(
        prompt_tokens=prompt,
        reused_tokens=0,
        generated_tokens=sum(r.emitted for r in rounds),
        rounds=len(rounds),
        accepted=accepted,
        rejected=rejected,
        unreached=sum(len(r.unreached) for r in rounds),
        reached_at=tuple(sum(j > i for j in judged) for i in range(longest)),
        accepted_at=tuple(sum(r.accepted > i for r in rounds) for i in range(longest)),
        drafted_at=tuple(sum(len(r.drafted) > i for r in rounds) for i in range(longest)),
        prefill_seconds=0.2,
        decode_seconds=sum(r.seconds for r in rounds),
        first_token_seconds=0.22,
    )


def finished(rounds: Sequence[Round], reason: FinishReason = "stop", text: str = "") -> Finished:
    return Finished(reason, "<|im_end|>" if reason == "stop" else "", text, usage_of(rounds))


def whole_reply(text: str, **more: object) -> list[Event]:
    """A reply from its prompt to its end."""
    rounds = rounds_of(tokens_of(text), **more)  # type: ignore[arg-type]
    rounds.append(stop_round(rounds))
    return [Prefill(40, 40, 0), *rounds, finished(rounds)]
