"""Clocks in a torch backend on a CPU: what a target pass and a chain of proposals spend by kind of work.

Nothing is there until `watched` puts it there, and nothing is left afterwards. On a device that computes while the
host goes on, clocks around calls would tell the launching only. Knows no loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from eagle3chat.engine import torch_backend
from eagle3chat.engine.stopwatch import Stopwatch
from eagle3chat.engine.torch_backend import TorchBackend
from eagle3chat.engine.torch_decoder import Layer
from eagle3chat.engine.torch_draft_program import DraftProgram
from eagle3chat.engine.torch_layers import FEW_ROWS, GatedMlp, Norm
from eagle3chat.engine.torch_program import Program
from eagle3chat.engine.torch_target import Target
from eagle3chat.kernels.cpu_tape import Kind, Tape

PASS, LINEARS, ATTENTION, NORMS, GATE, HEAD = (
    f"verify.{kind}" for kind in ("rest", "linears", "attention", "norms", "gate", "head")
)
CONFIRM, PROPOSE = "draft.confirm", "draft.propose"
STEPS = {Kind.LINEAR: LINEARS, Kind.ATTEND: ATTENTION, Kind.NORM: NORMS, Kind.ADD_NORM: NORMS, Kind.GATE: GATE}


class Watched:
    """Something in whose place this one stands, with some of its methods wrapped.

    Args:
        call: In place of calling it.
        methods: In place of its methods, by name.
    """

    def __init__(self, inner: Any, call: Callable[..., Any], **methods: Callable[..., Any]) -> None:
        self._inner, self._call = inner, call
        self.__dict__.update(methods)

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def watched(backend: TorchBackend, watch: Stopwatch) -> Iterator[None]:
    """Count the backend's passes by kind of work while the block runs; on a CPU, on the thread that calls it."""
    target, program = backend._target, backend._program
    with ExitStack() as undone:
        if target.program is not None:
            _watch_program(target.program, watch, undone)
        else:
            _watch_layers(target, watch, undone)
        head = watch.leaf(HEAD, target.logits)
        _put(backend, "_target", Watched(target, watch.timed(PASS, target), logits=head), undone)
        if program is not None:
            _watch_draft(program, watch, undone)
            _put(backend, "_program", watch.timed(PROPOSE, program), undone)
        _put(torch_backend, "propose", watch.timed(PROPOSE, torch_backend.propose), undone)  # one process, one profile
        _put(backend, "_catch_up", watch.timed(CONFIRM, backend._catch_up), undone)
        yield


def _put(owner: Any, name: str, value: Any, undone: ExitStack) -> None:
    """Set an attribute of an object until the end."""
    own = vars(owner)
    if name in own:
        undone.callback(setattr, owner, name, own[name])
    else:
        undone.callback(delattr, owner, name)
    setattr(owner, name, value)


def _watch_program(program: Program, watch: Stopwatch, undone: ExitStack) -> None:
    """Tapes, for every number of rows, step by step: the work of a pass, with a little more around it."""
    undone.callback(program.tapes.clear)
    for rows in range(1, FEW_ROWS + 1):
        program.tapes[rows] = _watched_tape(program.record(rows), watch)


def _watched_tape(tape: Tape, watch: Stopwatch) -> Callable[[int], None]:
    """Copies count to the rest."""
    steps = [partial(tape.one, index) for index in range(len(tape.kinds))]
    calls = [
        watch.leaf(STEPS[kind], step) if kind in STEPS else step for kind, step in zip(tape.kinds, steps, strict=True)
    ]

    def play(start: int) -> None:
        for call in calls:
            call(start)

    return play


def _watch_draft(program: DraftProgram, watch: Stopwatch, undone: ExitStack) -> None:
    """The pass over confirmed rows; what is left of the chain is proposals."""
    undone.callback(program.tapes.clear)
    for rows in range(1, FEW_ROWS + 1):
        tape = program.first(rows)
        program.tapes[rows] = Watched(tape, watch.leaf(CONFIRM, tape))
    taking = program.first(FEW_ROWS, proposing=False)
    _put(program, "taking", Watched(taking, watch.leaf(CONFIRM, taking)), undone)


def _watch_layers(target: Target, watch: Stopwatch, undone: ExitStack) -> None:
    """Layers that are called one by one."""
    _put(target, "layers", [_watched_layer(layer, watch, undone) for layer in target.layers], undone)
    _put(target, "norms", [_watched_norm(norm, watch) for norm in target.norms], undone)


def _watched_layer(layer: Layer, watch: Stopwatch, undone: ExitStack) -> Layer:
    attention, mlp = layer.attention, layer.mlp
    for name in ("qkv", "out"):
        _put(attention, name, watch.leaf(LINEARS, getattr(attention, name)), undone)
    if isinstance(mlp, GatedMlp):
        for name in ("gate_up", "down"):
            _put(mlp, name, watch.leaf(LINEARS, getattr(mlp, name)), undone)
    others: dict[str, Watched] = {
        name: _watched_norm(norm, watch)
        for name in ("post_norm", "attention_norm", "mlp_norm")
        if (norm := getattr(layer, name)) is not None
    }
    if layer.experts is not None:
        others["experts"] = Watched(layer.experts, watch.timed(LINEARS, layer.experts))
    return dataclasses.replace(
        layer,
        attention=Watched(attention, watch.timed(ATTENTION, attention)),
        mlp=Watched(mlp, watch.timed(GATE if isinstance(mlp, GatedMlp) else LINEARS, mlp)),
        **others,
    )


def _watched_norm(norm: Norm, watch: Stopwatch) -> Watched:
    return Watched(norm, watch.timed(NORMS, norm), add=watch.timed(NORMS, norm.add))
