"""A chain of proposals as tapes of kernel calls on memory of its own, recorded beforehand.

What `torch_proposal.propose` does on top of `DraftHead`, for the plain case that its `fits` describes: the numbers are
the same, but a proposal is two calls. The head's weights are cold in every round, and what torch and Python do around
the kernels costs as much again. Knows no target and no penalties.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from eagle3chat.engine.backend import Fate, Worth
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.torch_draft import DraftHead
from eagle3chat.engine.torch_layers import FEW_ROWS
from eagle3chat.engine.torch_linear import CodeTable
from eagle3chat.kernels import cpu_choice
from eagle3chat.kernels.cpu_linear import CpuLinear
from eagle3chat.kernels.cpu_tape import Step, Tape

FLOAT_BYTES, ID_BYTES = 4, 8
PROPOSING = 2  # steps at the end of a pass: the norm and the head of its last row


class DraftProgram:
    """A head's chains on the kernels.

    Args:
        head: See `fits`.
        longest: The longest chain.
    """

    def __init__(self, head: DraftHead, longest: int) -> None:
        self.head = head
        width, attend = head.config.hidden_size, head.attention.kernel
        inner, words = head.mlp.kernel.width, head.head.rows
        rows, dtype = FEW_ROWS, torch.bfloat16
        # Numbers that a chain reads and writes one by one: as arrays without torch, whose operations cost more.
        self.ids_in = (ctypes.c_int64 * rows)()
        self.embedded, self.features, self.x, self.normed, self.added, self.hidden = (
            torch.empty(rows, width, dtype=dtype) for _ in range(6)
        )
        self.pairs = torch.empty(rows, 2 * width, dtype=dtype)
        self.qkv = torch.empty(rows, attend.width_in, dtype=dtype)
        self.attended = torch.empty(rows, attend.width, dtype=dtype)
        self.gate_up = torch.empty(rows, 2 * inner, dtype=dtype)
        self.gated = torch.empty(rows, inner, dtype=dtype)
        self.out, self.last = torch.empty(width, dtype=dtype), torch.empty(width, dtype=dtype)
        self.logits = torch.empty(words)
        self.ids = (ctypes.c_int64 * (longest + 1))()  # the anchor, then the proposals
        self.p = (ctypes.c_float * (longest + 1))()
        ids, p = torch.frombuffer(self.ids, dtype=torch.int64), torch.frombuffer(self.p, dtype=torch.float32)
        self.said = [(ids[: chain + 1], p[: chain + 1]) for chain in range(longest + 1)]
        self.ids_at, self.p_at = ctypes.addressof(self.ids), ctypes.addressof(self.p)
        self.logits_at, self.target_ids_at, self.words = self.logits.data_ptr(), head.target_ids.data_ptr(), words
        self.tapes: dict[int, Tape] = {}  # of a chain's first pass, by its rows
        self.taking: Tape | None = None  # FEW_ROWS rows into the cache, and nothing else
        self.later = [self._later(step) for step in range(longest)]

    @staticmethod
    def fits(head: DraftHead) -> bool:
        """Whether the head is one layer that runs on the kernels from end to end, with an 8-bit embedding."""
        linears = (head.fc, head.attention.qkv, head.attention.out, head.mlp.gate_up, head.mlp.down, head.head)
        return (
            not head.later
            and not head.tap_norms
            and head.input_norm is None
            and all(isinstance(linear, CpuLinear) for linear in linears)
            and head.head.wide
            and head.attention.kernel is not None
            and head.mlp.kernel is not None
            and head.norm.kernel is not None
            and isinstance(head.embed, CodeTable)
            and head.embed.kernel is not None
        )

    def _pass(self, ids: int, features: int, rows: int) -> list[Step]:
        """A pass over rows whose tokens and features lie at two addresses; its last row is proposed from."""
        head, width = self.head, self.head.config.hidden_size
        line = self.embedded.element_size() * width
        embedded, pairs, qkv, attended, added, x, normed, gate_up, gated, hidden = (
            part.data_ptr()
            for part in (
                self.embedded,
                self.pairs,
                self.qkv,
                self.attended,
                self.added,
                self.x,
                self.normed,
                self.gate_up,
                self.gated,
                self.hidden,
            )
        )
        norms: list[Step] = []
        for row in range(rows):  # by row: the halves of a pair lie apart
            norms.append(head.embed_norm.kernel.step(embedded + row * line, pairs + 2 * row * line, 1))
            norms.append(head.hidden_norm.kernel.step(features + row * line, pairs + (2 * row + 1) * line, 1))
        residual = features
        if head.config.norm_before_residual:
            norms.append(head.hidden_norm.kernel.step(features, hidden, rows))
            residual = hidden
        final, out, last = (rows - 1) * line, self.out.data_ptr(), self.last.data_ptr()
        return [
            head.embed.kernel.step(ids, rows, embedded),
            *norms,
            head.attention.qkv.step(pairs, qkv, rows),
            head.attention.kernel.step(qkv, attended, rows),
            head.attention.out.step(attended, added, rows),
            head.post_norm.kernel.add_step(residual, added, x, normed, rows),
            head.mlp.gate_up.step(normed, gate_up, rows),
            head.mlp.kernel.step(gate_up, gated, rows),
            head.mlp.down.step(gated, added, rows),
            head.norm.kernel.add_step(x + final, added + final, out, last, 1),
            head.head.step(last, self.logits.data_ptr(), 1),
        ]

    def first(self, rows: int, *, proposing: bool = True) -> Tape:
        """The pass over so many confirmed rows; it reads their taps."""
        features = self.features.data_ptr()
        steps = [self.head.fc.step(0, features, rows), *self._pass(ctypes.addressof(self.ids_in), features, rows)]
        return Tape(steps if proposing else steps[:-PROPOSING])

    def _later(self, step: int) -> Tape:
        """The pass that follows proposal `step`, from the head's own output."""
        feature = self.last if self.head.config.norm_output else self.out
        return Tape(self._pass(self.ids_at + (step + 1) * ID_BYTES, feature.data_ptr(), 1))

    def __call__(
        self,
        taps: Tensor,
        tokens: Sequence[int],
        chain: int,
        sampling: Sampling,
        noise: Tensor | None,
        worth: Worth | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Take confirmed rows into the cache, counted, and propose; arguments and results as `propose`'s.

        The results are this memory: the next chain overwrites them.

        Args:
            taps: [p, A * Ht].
            tokens: [p], the token after each row's position; the last one is the anchor.
        """
        head = self.head
        assert tokens and 0 < chain <= len(self.later)
        taps = taps.contiguous()
        while len(tokens) > FEW_ROWS:  # after a rest
            if self.taking is None:
                self.taking = self.first(FEW_ROWS, proposing=False)
            self._confirm(self.taking, taps, tokens[:FEW_ROWS])
            taps, tokens = taps[FEW_ROWS:], tokens[FEW_ROWS:]
        rows = len(tokens)
        first = self.tapes.get(rows)
        if first is None:
            first = self.tapes[rows] = self.first(rows)
        self._confirm(first, taps, tokens)
        self.ids[0] = tokens[-1]
        for step in range(chain):
            self._pick(step, sampling, noise)
            fate = Fate.MORE if worth is None else worth(self.p[step])
            if fate is not Fate.MORE:
                chain = step + (fate is Fate.LAST)
                break
            if step + 1 < chain:
                self.later[step](head.cache.rows + step)
        self.p[chain] = 0.0
        return self.said[chain]

    def _confirm(self, tape: Tape, taps: Tensor, tokens: Sequence[int]) -> None:
        """Play a first pass over the leading rows."""
        self.ids_in[: len(tokens)] = tokens
        tape.read(taps.data_ptr())
        tape(self.head.cache.rows)
        self.head.cache.advance(len(tokens))

    def _pick(self, step: int, sampling: Sampling, noise: Tensor | None) -> None:
        """A proposal from the logits at hand."""
        cpu_choice.pick(
            self.logits_at,
            None if noise is None else noise.data_ptr() + step * noise.shape[1] * FLOAT_BYTES,
            self.target_ids_at,
            self.words,
            sampling.temperature or 1.0,
            sampling.sharpness,
            self.ids_at + (step + 1) * ID_BYTES,
            self.p_at + step * FLOAT_BYTES,
        )
