"""Attention with sinks: the softmax written out, in one go and by key-value heads."""

from __future__ import annotations

import pytest
import torch

from eagle3chat.engine import torch_sinks
from eagle3chat.engine.torch_sinks import attend_with_sinks


@pytest.mark.parametrize("many", [0, torch_sinks.MANY])
@pytest.mark.parametrize("shape", [(2, 1, 6), (2, 3, 4)])
def test_a_sink_takes_its_share_and_gives_nothing(
    shape: tuple[int, ...], many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_sinks, "MANY", many)
    made = torch.Generator().manual_seed(0)
    kv, heads, rows = shape
    q = torch.randn(kv, heads, rows, 8, generator=made)
    keys, values = (torch.randn(kv, 1, 5, 8, generator=made).expand(kv, heads, 5, 8) for _ in range(2))
    sinks = torch.randn(kv, heads, rows, 1, generator=made)
    mask = torch.zeros(rows, 5).masked_fill_(torch.rand(rows, 5, generator=made) < 0.3, -torch.inf)
    scores = torch.cat((q @ keys.mT * 0.3 + mask, sinks), -1)
    wanted = scores.softmax(-1)[..., :-1] @ values
    got = attend_with_sinks(q, keys, values, mask, sinks, 0.3)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
    assert got.shape == q.shape


def test_large_scores_do_not_overflow() -> None:
    q = torch.full((1, 1, 1, 2), 200.0)
    keys, values = torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2)
    for sink, wanted in ((-1e4, 1.0), (400.0, 0.75), (1e4, 0.0)):
        got = attend_with_sinks(q, keys, values, None, torch.full((1, 1, 1, 1), sink), 1.0)
        torch.testing.assert_close(got, torch.full_like(got, wanted))
