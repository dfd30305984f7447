"""The noise of positions on a device: the same bits as `engine.sampling.noise_bits`, for the whole vocabulary.

The keys of a position come from the host; everything here is elementwise. 32-bit words live in int32,
whose products wrap; a shift to the right is arithmetic there, so the sign's copies are masked off.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle3chat.engine.sampling import ID_STEP, V_MAX, noise_key
from eagle3chat.engine.torch_device import upload
from eagle3chat.kernels import cpu_choice
from eagle3chat.kernels.cpu import library


def _signed(word: int) -> int:
    """A 32-bit word as the int32 with the same bits."""
    return word - 2**32 if word >= 2**31 else word


def signed_keys(seed: int, positions: Sequence[int]) -> list[list[int]]:
    """Both keys of each position, as int32."""
    return [[_signed(word) for word in noise_key(seed, position)] for position in positions]


def _mix(x: Tensor, spare: Tensor) -> Tensor:
    """The finaliser of `sampling._mix32`, in place; `spare` has x's shape."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None)):
        torch.bitwise_right_shift(x, shift, out=spare)
        spare.bitwise_and_((1 << (32 - shift)) - 1)
        x.bitwise_xor_(spare)
        if factor is not None:
            x.mul_(_signed(factor))
    return x


class Noise:
    """Gumbel noise over a vocabulary of V ids.

    Args:
        vocabulary: V.
    """

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self.device = device
        self.compiled = device.type == "cpu" and library() is not None
        ids = (torch.arange(vocabulary, dtype=torch.int64) * ID_STEP) & 0xFFFFFFFF
        self.steps = torch.where(ids >= 2**31, ids - 2**32, ids).int().to(device)  # id * ID_STEP

    def bits(self, seed: int, positions: Sequence[int]) -> Tensor:
        """Int32 [len(positions), V]; as unsigned words they equal `noise_bits`."""
        return self._bits_of(upload(signed_keys(seed, positions), torch.int32, self.device))

    def _bits_of(self, keys: Tensor) -> Tensor:
        first, second = keys.unsqueeze(-1).unbind(1)
        x = self.steps + first
        spare = torch.empty_like(x)
        return _mix(_mix(x, spare).bitwise_xor_(second), spare)

    def gumbel(self, seed: int, positions: Sequence[int]) -> Tensor:
        """Float32 [len(positions), V]: -log(-log1p(-v)), v = (bits + 0.5) / 2**32, clamped below 1."""
        if self.compiled:
            return cpu_choice.gumbel([noise_key(seed, position) for position in positions], len(self.steps))
        return self.gumbel_plainly(seed, positions)

    def gumbel_plainly(self, seed: int, positions: Sequence[int]) -> Tensor:
        """What `gumbel` gives, by torch's operations."""
        return _gumbel(self.bits(seed, positions))

    def of(self, keys: Tensor) -> Tensor:
        """The same of keys that the device has, int32 [R, 2]: see `signed_keys`."""
        return _gumbel(self._bits_of(keys))


def _gumbel(bits: Tensor) -> Tensor:
    v = bits.float()
    v.add_((v < 0).float().mul_(2.0**32)).add_(0.5).mul_(2.0**-32).clamp_(max=V_MAX)
    return v.neg_().log1p_().neg_().log_().neg_()
