"""Embedding rows out of 8 bits: the bits of torch's own operations."""

from __future__ import annotations

import pytest
import torch

from eagle3chat.kernels import cpu
from eagle3chat.kernels.cpu_table import TableRows

pytestmark = pytest.mark.skipif(cpu.library() is None, reason="the kernels are not built here")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("width", "group"), [(32, 32), (96, 32), (256, 64), (384, 128)])
def test_rows(width: int, group: int, dtype: torch.dtype) -> None:
    torch.manual_seed(width)
    codes = torch.randint(0, 256, (50, width), dtype=torch.uint8)
    params = torch.randn(50, 2, width // group, 1)
    ids = torch.tensor([3, 49, 0, 3])
    scales, biases = params[ids].unbind(1)
    plain = codes[ids].float().view(4, -1, group).mul_(scales).add_(biases).view(4, width).to(dtype)
    rows = TableRows(codes, params, group, dtype)
    assert torch.equal(rows(ids), plain)
    assert torch.equal(rows(ids[1:2]), plain[1:2])
