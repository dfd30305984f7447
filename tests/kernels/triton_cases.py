"""Cases of the GPU's linear kernel against its twin, for an interpreter of its own: triton decides when it is imported.

Prints one line a case and exits with 1 after a failure. Run by test_triton_linear.py on a CPU, with TRITON_INTERPRET=1,
and by tests/gpu/check.py on a device.
"""

from __future__ import annotations

import sys

import torch

from eagle3chat.kernels.triton_linear import TritonLinear, twin


def weight(rows: int, columns: int, bits: int, group: int, device: str, bias: bool) -> TritonLinear:
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    words = torch.randint(-(2**31), 2**31, (rows, columns * bits // 32), generator=generator).int()
    scales = torch.rand(rows, columns // group, generator=generator) / 2**bits
    biases = -torch.rand(rows, columns // group, generator=generator)
    if group == 64:  # as bundles have them
        scales, biases = scales.half(), biases.half()
    added = torch.randn(rows, generator=generator).to(device) if bias else None
    form = {"bits": bits, "group": group, "wide": group == 128}
    return TritonLinear(words.to(device), scales.to(device), biases.to(device), bias=added, **form)


def failures(device: str) -> int:
    count = 0
    shapes = ((33, 64, 32), (70, 192, 32), (20, 1664, 64), (40, 384, 128), (16, 32, 32))  # 1664: three shares, uneven
    for rows, columns, group in shapes:
        for bits in (4, 8):
            # The interpreter has no bfloat16 products: float16 stands for the short types there.
            for dtype in (torch.float32, torch.float16 if device == "cpu" else torch.bfloat16):
                linear = weight(rows, columns, bits, group, device, bias=rows % 2 == 0)
                x = torch.randn(17, columns, generator=torch.Generator().manual_seed(bits)).to(device, dtype)
                loose = 1e-4 if dtype == torch.float32 else 2e-3 if dtype == torch.float16 else 2e-2
                kind = torch.float32 if linear.wide else dtype
                for m in (1, 2, 3, 5, 8, 16, 17):
                    got, wanted = linear(x[:m]), twin(linear, x[:m])
                    error = ((got.double() - wanted).abs().max() / wanted.abs().max().clamp_min(1.0)).item()
                    alone = m > 16 or torch.equal(got[-1:], linear(x[m - 1 : m]))
                    # More rows go through a dense weight. A device multiplies and adds in one step, so a weight in a
                    # million rounds to the other neighbour.
                    near = (1e-4 if device == "cpu" else 2e-3) if linear.wide and m <= 16 else loose
                    good = error < near and alone and got.shape == (m, rows) and got.dtype == kind
                    print(
                        f"{rows}x{columns} g{group} {bits} bits {dtype} M={m}: {error:.1e}{'' if good else ' FAILED'}"
                    )
                    count += not good
    return count


if __name__ == "__main__":
    sys.exit(min(1, failures(sys.argv[1] if len(sys.argv) > 1 else "cpu")))
