"""A bundle's target and draft together: proposals, and what a round should say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eagle3chat.engine.manifest import read_manifest
from eagle3chat.engine.sampling import Sampling
from reference.choice import noise, penalised, shaped
from reference.draft import DraftTruth
from reference.numbers import Array, softmax
from reference.target import TargetTruth
from reference.weights import read_weights

RUNNERS_UP = 4


@dataclass(frozen=True, slots=True)
class Truth:
    """What a round should say; the names are those of `Verdict`, and `draft_margin` by how much each proposal won."""

    drafted: tuple[int, ...]
    draft_p: tuple[float, ...]
    target_p: tuple[float, ...]
    chosen: tuple[int, ...]
    chosen_p: tuple[float, ...]
    runners_up: tuple[tuple[tuple[int, float], ...], ...]
    margin: tuple[float, ...]
    draft_margin: tuple[float, ...]

    @property
    def accepted(self) -> int:
        """How many of the drafted tokens the target agrees with."""
        agree = [a == b for a, b in zip(self.drafted, self.chosen, strict=False)]
        return agree.index(False) if False in agree else len(agree)


class Reference:
    """A bundle's pair.

    Args:
        bundle: Its directory; tensors F32, F16, or MLX affine of 4 or 8 bits.
    """

    def __init__(self, bundle: Path) -> None:
        self.manifest = read_manifest(bundle)
        weights = read_weights(bundle / "target", self.manifest.quantization)
        self._target = TargetTruth(self.manifest.target, weights)
        self.draft: DraftTruth | None = None
        if self.manifest.draft is not None:
            rows = weights["model.embed_tokens.weight"]
            drafted = read_weights(bundle / "draft")
            self.draft = DraftTruth(self.manifest.draft, drafted, rows, self._target.head)

    def target(self, tokens: Sequence[int]) -> tuple[Array, list[Array]]:
        """Logits [n, V] of every position, and the residual streams [n, Ht] at boundaries 0..num_layers."""
        return self._target(tokens)

    def features(self, tokens: Sequence[int]) -> Array:
        """[n, H] of every position, from the target's taps."""
        assert self.draft is not None
        streams = self.target(tokens)[1]
        return self.draft.fuse([streams[tap] for tap in self.draft.config.taps])

    def chain(
        self, tokens: Sequence[int], length: int, sampling: Sampling, prompt: int | None = None
    ) -> tuple[list[int], list[float], list[float]]:
        """Proposals for the positions after `tokens`, the draft's probability of each, and by how much it won.

        Args:
            prompt: How many of `tokens` are the prompt; None: all. The rest is reply, for penalties.
        """
        drafted: list[int] = []
        probabilities: list[float] = []
        margins: list[float] = []
        if self.draft is None or len(tokens) < 2 or length <= 0:
            return drafted, probabilities, margins
        features = self.features(tokens[:-1])
        for _ in range(length):
            beside = [*tokens[1:], *drafted]
            logits, made = self.draft.said(self.draft.outputs(features, beside)[-1:])
            now = [*tokens, *drafted]
            place, p, margin = self._proposed(logits[0], now, len(tokens) if prompt is None else prompt, sampling)
            drafted.append(self.draft.target_ids[place])
            probabilities.append(p)
            margins.append(margin)
            features = np.concatenate((features, made))
        return drafted, probabilities, margins

    def _proposed(self, row: Array, now: list[int], prompt: int, s: Sampling) -> tuple[int, float, float]:
        """Place in the draft's vocabulary, probability and margin of a proposal after the tokens `now`."""
        assert self.draft is not None
        ids = self.draft.target_ids
        row = penalised(row, now[:prompt], now[prompt:], ids, s) / (s.temperature or 1.0)
        p = softmax(row)
        scores = row
        if s.temperature > 0.0:
            scores = row / s.sharpness + noise(s.seed, len(now), self.manifest.target.vocab_size)[ids]
        place = int(scores.argmax())
        return place, float(p[place]), _lead(scores)

    def round(self, tokens: Sequence[int], length: int, sampling: Sampling, prompt: int | None = None) -> Truth:
        """What a backend should say in a round with a chain of `length` after `tokens`; `prompt` as for `chain`."""
        prompt = len(tokens) if prompt is None else prompt
        drafted, draft_p, draft_margin = self.chain(tokens, length, sampling, prompt)
        now = [*tokens, *drafted]
        logits = self.target(now)[0]
        chosen, margins, shapes = [], [], []
        for end in range(len(tokens), len(now) + 1):
            vocabulary = range(logits.shape[1])
            row = shaped(penalised(logits[end - 1], now[:prompt], now[prompt:end], vocabulary, sampling), sampling)
            shapes.append(softmax(row))
            if sampling.temperature > 0.0:
                row = row + noise(sampling.seed, end, len(row))
            chosen.append(int(row.argmax()))
            margins.append(_lead(row))
        tops = [np.argsort(-p, kind="stable")[:RUNNERS_UP].tolist() for p in shapes]
        return Truth(
            drafted=tuple(drafted),
            draft_p=tuple(draft_p),
            target_p=tuple(float(p[t]) for p, t in zip(shapes, drafted, strict=False)),
            chosen=tuple(chosen),
            chosen_p=tuple(float(p[t]) for p, t in zip(shapes, chosen, strict=True)),
            runners_up=tuple(
                tuple((i, float(p[i])) for i in top if p[i] > 0.0) for top, p in zip(tops, shapes, strict=True)
            ),
            margin=tuple(margins),
            draft_margin=tuple(draft_margin),
        )


def _lead(scores: Array) -> float:
    """The largest minus the second."""
    second, best = np.sort(scores)[-2:]
    return float(best - second)
