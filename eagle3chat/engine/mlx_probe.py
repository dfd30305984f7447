"""Prints what MLX sees of this machine, for `doctor`: JSON rows of device, what it is, why it is off."""

from __future__ import annotations

import json

import mlx.core as mx


def rows() -> list[tuple[str, str, str]]:
    """The CPU, and the GPU or why there is none."""
    gpu = mx.is_available(mx.gpu)
    what = "Metal" if mx.metal.is_available() else "CUDA" if gpu else "none"
    return [("mlx cpu", "available", ""), ("mlx gpu", what, "" if gpu else "this MLX sees no GPU")]


if __name__ == "__main__":
    print(json.dumps(rows()))
