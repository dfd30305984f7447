"""Weights as 4 bits keep them, while a draft learns."""

from __future__ import annotations

import torch

from eagle3chat.engine.torch_linear import few_bits
from eagle3chat.kernels import cpu_linear
from eagle3chat.train.torch_head import HEAD
from eagle3chat.train.torch_rounding import EVERY, NAMES, Rounding, rounded


def test_it_is_what_the_engine_makes_of_a_weight() -> None:
    weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(1))
    found = rounded(weight)
    assert 0.01 < float((found - weight).abs().mean()) < 0.1
    assert len(found[0, :32].unique()) <= 16
    if not cpu_linear.usable():
        return
    x = torch.eye(64, dtype=torch.bfloat16)  # exact in the kernels' 8 bits
    made = few_bits(weight, None, bits=4, wide=True)(x)
    torch.testing.assert_close(made, found.t().contiguous(), rtol=0.0, atol=2e-2)
    assert float((made - found.t()).abs().mean()) < 0.2 * float((found - weight).abs().mean())


def test_head_and_mlp_are_rounded_and_follow_their_masters() -> None:
    rng = torch.Generator().manual_seed(2)
    masters = {name: torch.randn(8, 32, generator=rng) for name in (*NAMES, "fc.weight")}
    rounding = Rounding(torch.float32)
    seen = rounding(masters, 0)
    assert torch.equal(seen["fc.weight"], masters["fc.weight"])
    for name in NAMES:
        torch.testing.assert_close(seen[name], rounded(masters[name]))
    error = seen[HEAD] - masters[HEAD]
    masters[HEAD] += 0.01
    torch.testing.assert_close(rounding(masters, EVERY - 1)[HEAD] - masters[HEAD], error)
    masters[HEAD] *= 2.0
    torch.testing.assert_close(rounding(masters, EVERY)[HEAD], rounded(masters[HEAD]))


def test_what_cannot_be_grouped_stays() -> None:
    masters = {HEAD: torch.randn(8, 40, generator=torch.Generator().manual_seed(3))}
    assert torch.equal(Rounding(torch.float32)(masters, 0)[HEAD], masters[HEAD])


def test_rounded_again_a_weight_stays() -> None:
    once = rounded(torch.randn(64, 96, generator=torch.Generator().manual_seed(4))).bfloat16().float()
    again = rounded(once)
    first = rounded(torch.randn(64, 96, generator=torch.Generator().manual_seed(4)))
    lost = (first - torch.randn(64, 96, generator=torch.Generator().manual_seed(4))).square().mean()
    assert float((again - first).square().mean()) < 0.02 * float(lost)
