"""Looking for numbers that are not finite in raw tensors: one row of them makes a model say nothing, without an error.

Knows bits, not what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.tensor_file import LazyTensor

EXPONENTS: Mapping[str, tuple[str, int]] = {"F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
"""Unsigned type and bits of the exponent; all of them set: infinite, or no number."""
STEP = 1 << 21  # numbers that are looked at at once


def check_finite(tensor: LazyTensor, start: int, data: memoryview) -> None:
    """Look at the bytes of a tensor from `start` on; tensors of whole numbers are not looked at.

    Raises:
        CheckpointError: Names the tensor and the row.
    """
    if tensor.dtype not in EXPONENTS:
        return
    kind, mask = EXPONENTS[tensor.dtype]
    numbers = np.frombuffer(data, kind)
    for at in range(0, len(numbers), STEP):
        bad = (numbers[at : at + STEP] & mask) == mask
        if bad.any():
            place = start // numbers.itemsize + at + int(np.argmax(bad))
            row = place // tensor.shape[-1] if tensor.shape else 0
            what = f"The tensor {tensor.name} has a number that is not finite, in row {row}"
            raise CheckpointError(f"{what}.", "Download the checkpoint again, or use another one.")
