"""Steps that are played in a row, against the same kernels called one by one; and one at a time."""

from __future__ import annotations

import pytest
import torch

from eagle3chat.kernels.cpu import library
from eagle3chat.kernels.cpu_linear import CpuLinear, eight_bit
from eagle3chat.kernels.cpu_parts import Gate, RowNorm
from eagle3chat.kernels.cpu_table import TableRows
from eagle3chat.kernels.cpu_tape import Kind, Tape, copy

pytestmark = pytest.mark.skipif(library() is None, reason="the kernels were not built")
WIDTH, INNER, ROWS = 64, 96, 3


def linear(rows: int, columns: int, wide: bool = False) -> CpuLinear:
    return CpuLinear(*eight_bit(torch.randn(rows, columns)), group=32, bits=8, wide=wide)


def test_a_pass_of_every_kind() -> None:
    torch.manual_seed(3)
    table = TableRows(
        torch.randint(0, 256, (50, WIDTH), dtype=torch.uint8), torch.randn(50, 2, WIDTH // 32), 32, torch.bfloat16
    )
    norm = RowNorm(torch.rand(WIDTH) + 0.5, 1e-5, torch.bfloat16)
    up, down, head = linear(2 * INNER, WIDTH), linear(WIDTH, INNER), linear(70, WIDTH, wide=True)
    gate = Gate(INNER, "silu", torch.bfloat16)
    ids = torch.tensor([4, 49, 0])
    x, normed, added, last, total = (torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16) for _ in range(5))
    both, gated = torch.zeros(ROWS, 2 * INNER, dtype=torch.bfloat16), torch.zeros(ROWS, INNER, dtype=torch.bfloat16)
    logits, tapped = torch.zeros(ROWS, 70), torch.zeros(ROWS, 2 * WIDTH, dtype=torch.bfloat16)
    line = 2 * WIDTH
    tape = Tape(
        [
            table.step(ids.data_ptr(), ROWS, x.data_ptr()),
            norm.step(x.data_ptr(), normed.data_ptr(), ROWS),
            up.step(normed.data_ptr(), both.data_ptr(), ROWS),
            gate.step(both.data_ptr(), gated.data_ptr(), ROWS),
            down.step(gated.data_ptr(), added.data_ptr(), ROWS),
            norm.add_step(x.data_ptr(), added.data_ptr(), total.data_ptr(), last.data_ptr(), ROWS),
            head.step(last.data_ptr(), logits.data_ptr(), ROWS),
            copy(total.data_ptr(), tapped.data_ptr() + line, ROWS, line, line, 2 * line),
        ]
    )
    wanted_x = table(ids)
    wanted_total, wanted_last = norm.add(wanted_x, down(gate(up(norm(wanted_x)))))
    tape(0)
    assert torch.equal(x, wanted_x) and torch.equal(total, wanted_total) and torch.equal(last, wanted_last)
    assert torch.equal(logits, head(wanted_last)) and logits.abs().min() > 0
    assert torch.equal(tapped, torch.cat((torch.zeros_like(total), wanted_total), -1))
    assert tape.kinds == [
        *(Kind.ROWS, Kind.NORM, Kind.LINEAR, Kind.GATE),
        *(Kind.LINEAR, Kind.ADD_NORM, Kind.LINEAR, Kind.COPY),
    ]


def test_one_step_and_another_place_to_read() -> None:
    torch.manual_seed(4)
    norm = RowNorm(torch.rand(WIDTH) + 0.5, 1e-5, torch.float32)
    x, other, out, copied = torch.randn(1, WIDTH), torch.randn(1, WIDTH), torch.zeros(1, WIDTH), torch.zeros(1, WIDTH)
    line = 4 * WIDTH
    tape = Tape(
        [norm.step(x.data_ptr(), out.data_ptr(), 1), copy(out.data_ptr(), copied.data_ptr(), 1, line, line, line)]
    )
    tape.one(0, 0)
    assert torch.equal(out, norm(x)) and not copied.any()
    tape.read(other.data_ptr())
    tape(0)
    assert torch.equal(copied, norm(other))
