"""Sampling settings, the noise of a position, and the choice rule in plain Python.

The choice rule is the slow, readable truth: the tensor backends compute the same function on their
devices, and tests compare them with this one. Nothing here has a state.

    choose(logits, t) = argmax(filter(penalised / temperature) + noise(seed, t))     temperature 0: argmax(penalised)

With Gumbel noise that is exact sampling from softmax(filter(penalised / temperature)) (the Gumbel-max trick). The
noise depends on (seed, position, token id) alone, and the penalties on the tokens before the position, so a token is
a pure function of the text before it, and speculation cannot change it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3chat.engine.errors import SettingError

MASK32 = 0xFFFFFFFF
MASK64 = 0xFFFFFFFFFFFFFFFF
ID_STEP = 0x9E3779B1  # 2**32 / golden ratio, odd: spreads neighbouring token ids
V_MAX = 1.0 - 2.0**-24  # the largest float32 below 1: keeps log1p(-v) finite


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target's distribution is shaped and drawn from.

    Penalties act first, see `penalised`; then filters in this order: temperature, top-k, top-p, min-p. Each filter
    keeps ties, so that none depends on the order of equal logits.

    Args:
        temperature: 0 is greedy.
        top_k: Keep the k most probable tokens; 0 is off.
        top_p: Keep a token while the mass of all more probable ones is below this; 1 is off.
        min_p: Keep tokens with at least this share of the largest probability; 0 is off.
        seed: Of the noise, 0..2**64-1.
        sharpness: Scales the draft's noise: its proposal is argmax(log q / sharpness + noise). Changes
            acceptance, never the text.
        repetition: Makes tokens of the prompt and the reply less likely when above 1, more likely below; 1 is off.
        presence: Taken from the logits of tokens that the reply has; 0 is off.
        frequency: Taken from a token's logit for each time that the reply has it; 0 is off.

    Raises:
        SettingError: A value is outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    sharpness: float = 0.7
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    def __post_init__(self) -> None:
        checks = (
            ("temperature", self.temperature, 0.0 <= self.temperature <= 100.0, "0 (greedy) to 100"),
            ("top-k", self.top_k, self.top_k >= 0, "0 (off) or more"),
            ("top-p", self.top_p, 0.0 < self.top_p <= 1.0, "above 0 and up to 1 (off)"),
            ("min-p", self.min_p, 0.0 <= self.min_p <= 1.0, "0 (off) to 1"),
            ("seed", self.seed, 0 <= self.seed <= MASK64, "0 to 2**64 - 1"),
            ("sharpness", self.sharpness, 0.0 < self.sharpness <= 10.0, "above 0 and up to 10"),
            ("repetition penalty", self.repetition, 0.0 < self.repetition <= 100.0, "above 0 and up to 100; 1 is off"),
            ("presence penalty", self.presence, -2.0 <= self.presence <= 2.0, "-2 to 2; 0 is off"),
            ("frequency penalty", self.frequency, -2.0 <= self.frequency <= 2.0, "-2 to 2; 0 is off"),
        )
        for name, value, legal, span in checks:
            if not legal:
                raise SettingError(f"A {name} of {value} is not possible.", f"Use {span}.")

    @property
    def penalises(self) -> bool:
        """Whether any penalty is on."""
        return self.repetition != 1.0 or self.presence != 0.0 or self.frequency != 0.0

    @property
    def penalties(self) -> tuple[tuple[str, float], ...]:
        """The penalties that are on, by name."""
        all_ = (("repetition", self.repetition, 1.0), ("presence", self.presence, 0.0))
        return tuple((name, value) for name, value, off in (*all_, ("frequency", self.frequency, 0.0)) if value != off)


@dataclass(frozen=True, slots=True)
class Before:
    """The tokens before a position, as penalties see them. What is drafted before a row counts as reply there."""

    prompt: Sequence[int] = ()
    reply: Sequence[int] = ()


NOTHING = Before()


def noise_key(seed: int, position: int) -> tuple[int, int]:
    """The two 32-bit keys of the noise at a position: splitmix64 of seed and position.

    Source of the mixer: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
    """
    state = (_mix64(seed & MASK64) + position * 0x9E3779B97F4A7C15) & MASK64
    mixed = _mix64(state)
    return mixed & MASK32, mixed >> 32


def noise_bits(key: tuple[int, int], token: int) -> int:
    """The 32 random bits of one token id under a position's keys; the same in every backend.

    Two rounds of a 32-bit finaliser (constants "lowbias32": C. Wellons, hash-prospector) around the second key.
    """
    return _mix32(_mix32((token * ID_STEP + key[0]) & MASK32) ^ key[1])


def gumbel(seed: int, position: int, token: int) -> float:
    """Standard Gumbel noise of (seed, position, token id)."""
    return _gumbel_of(noise_bits(noise_key(seed, position), token))


def gumbel_row(seed: int, position: int, size: int) -> list[float]:
    """The noise of token ids 0 .. size-1 at a position."""
    key = noise_key(seed, position)
    return [_gumbel_of(noise_bits(key, token)) for token in range(size)]


def _gumbel_of(bits: int) -> float:
    v = min((bits + 0.5) / 2.0**32, V_MAX)
    return -math.log(-math.log1p(-v))


def _mix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def _mix32(x: int) -> int:
    x ^= x >> 16
    x = (x * 0x7FEB352D) & MASK32
    x ^= x >> 15
    x = (x * 0x846CA68B) & MASK32
    return x ^ (x >> 16)


def softmax(logits: Sequence[float]) -> list[float]:
    """Probabilities of logits; -inf has probability 0."""
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    total = sum(weights)
    return [w / total for w in weights]


def penalised(
    logits: Sequence[float], sampling: Sampling, before: Before, ids: Sequence[int] | None = None
) -> list[float]:
    """The logits [V] after penalties.

    Repetition divides positive logits and multiplies others, of tokens that prompt or reply have (Keskar et al.,
    "CTRL", 2019). Presence and frequency then take their values from tokens of the reply (OpenAI's API reference).

    Args:
        ids: Target id of each logit; None: its place. A draft has a vocabulary of its own.
    """
    if not sampling.penalises:
        return list(logits)
    counts, prompt = Counter(before.reply), frozenset(before.prompt)
    row = []
    for token, x in zip(range(len(logits)) if ids is None else ids, logits, strict=True):
        count = counts[token]
        if count or token in prompt:
            x = x / sampling.repetition if x > 0.0 else x * sampling.repetition
        row.append(x - sampling.presence * (count > 0) - sampling.frequency * count)
    return row


def filtered(logits: Sequence[float], sampling: Sampling, before: Before = NOTHING) -> list[float]:
    """The logits [V] after penalties, temperature and filters; tokens that were dropped are -inf.

    Temperature 0 counts as 1, without filters.
    """
    scaled = [x / (sampling.temperature or 1.0) for x in penalised(logits, sampling, before)]
    if sampling.temperature == 0.0:
        return scaled
    if 0 < sampling.top_k < len(scaled):
        least = sorted(scaled, reverse=True)[sampling.top_k - 1]
        scaled = [x if x >= least else -math.inf for x in scaled]
    if sampling.top_p < 1.0:
        p = softmax(scaled)
        order = sorted(range(len(p)), key=p.__getitem__, reverse=True)
        mass, least_p = 0.0, 0.0
        for i in order:  # the least probable token whose more probable ones do not yet reach top_p
            if mass >= sampling.top_p:
                break
            mass, least_p = mass + p[i], p[i]
        scaled = [x if q >= least_p else -math.inf for x, q in zip(scaled, p, strict=True)]
    if sampling.min_p > 0.0:
        p = softmax(scaled)
        least_p = sampling.min_p * max(p)
        scaled = [x if q >= least_p else -math.inf for x, q in zip(scaled, p, strict=True)]
    return scaled


def choose(logits: Sequence[float], position: int, sampling: Sampling, before: Before = NOTHING) -> int:
    """The token id at an absolute position: the choice rule. The first of equal maxima wins."""
    values = filtered(logits, sampling, before)
    if sampling.temperature > 0.0:
        noise = gumbel_row(sampling.seed, position, len(values))
        values = [x + g for x, g in zip(values, noise, strict=True)]
    return max(range(len(values)), key=values.__getitem__)
