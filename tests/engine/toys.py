"""Small tables and a plain loop, for tests of the loop and the choice rule."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from eagle3chat.engine.requests import Controls
from eagle3chat.engine.sampling import Sampling, choose
from eagle3chat.engine.scripted import ScriptedBackend, Table
from eagle3chat.engine.speculate import Step, speculate

V = 8
HOT = (0, 2, 3, 5, 6)  # the draft's vocabulary: three target tokens are out of its reach


def toy_target(context: Sequence[int]) -> list[float]:
    """Logits [V] that depend on the last three tokens and on the length, so that a wrong cache shows."""
    chance = random.Random(f"target {tuple(context[-3:])} {len(context) % 7}")
    return [chance.gauss(0.0, 1.5) for _ in range(V)]


def toy_draft(context: Sequence[int]) -> list[float]:
    """The target's logits at HOT with an error of its own."""
    chance = random.Random(f"draft {tuple(context[-3:])} {len(context) % 7}")
    full = toy_target(context)
    return [full[i] + chance.gauss(0.0, 0.7) for i in HOT]


def toy_backend(draft: Table | None = toy_draft, **options: int) -> ScriptedBackend:
    """The toy pair."""
    return ScriptedBackend(toy_target, draft, HOT, vocab_size=V, **options)


def plain(prompt: Sequence[int], sampling: Sampling, count: int) -> list[int]:
    """What the target alone writes: no backend, no loop of ours, no cache."""
    context = list(prompt)
    for _ in range(count):
        context.append(choose(toy_target(context), len(context), sampling))
    return context[len(prompt) :]


def keep_all(offered: tuple[int, ...]) -> tuple[int, bool]:
    """A cut that never stops."""
    return len(offered), False


def decode(
    backend: ScriptedBackend,
    prompt: Sequence[int],
    controls: Callable[[], Controls],
    count: int,
    cut: Callable[[tuple[int, ...]], tuple[int, bool]] = keep_all,
) -> list[Step]:
    """All steps of one reply."""
    for _ in backend.prefill(prompt, 0):
        pass
    return list(speculate(backend, len(prompt), controls, cut, count))


def ids(steps: Sequence[Step]) -> list[int]:
    """The emitted ids."""
    return [token for step in steps for token in step.tokens]
