"""The slow truth: target, draft and a round in NumPy float64, without a cache, from a bundle's files.

Everything is recomputed from the token list each time it is asked for. No code is shared with a backend, so a
fault would have to be made twice to go unseen: only the values are (`config`, `sampling.Sampling`).
"""

from reference.pair import Reference, Truth

__all__ = ["Reference", "Truth"]
