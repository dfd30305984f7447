"""The caches of the MLX backend by themselves: rows are numbers, so that what is handed out can be read."""

from __future__ import annotations

import itertools
import random

import pytest

mx = pytest.importorskip("mlx.core")

import numpy as np  # noqa: E402
from mlx_lm.models.base import create_causal_mask  # noqa: E402
from mlx_targets import TrimmedStock  # noqa: E402

from eagle3chat.engine.mlx_cache import FullCache, SlidingCache  # noqa: E402

WINDOW = 8


class Reader:
    """Writes rows whose key is their position (rejected ones: a name of their own), and reads what comes back."""

    def __init__(self, cache: object, window: int = 0) -> None:
        self.cache, self.window = cache, window
        self.truth: list[float] = []  # the key of each position
        self.fresh = itertools.count(1000)

    def update(self, rows: int) -> None:
        """Append rows and compare what each sees with the truth."""
        new = [float(next(self.fresh)) for _ in range(rows)]
        before = len(self.truth)
        assert self.cache.offset == before
        mask = self.cache.make_mask(rows, window_size=self.window or None)
        values = mx.array([[-key, key / 2, 1.0] for key in new])[None, None]
        keys, values = self.cache.update_and_fetch(mx.array([[key, 0.5] for key in new])[None, None], values)
        assert keys.shape[-1] == 2 and values.shape[-1] == 3  # widths may differ
        self.truth += new
        held, seen = np.array(keys[0, 0, :, 0]), self._seen(mask, rows, keys.shape[2])
        assert np.array_equal(np.array(values[0, 0, :, 0]), -held)
        for row in range(rows):
            end = before + row + 1
            wanted = self.truth[max(0, end - self.window) if self.window else 0 : end]
            assert held[seen[row]].tolist() == wanted, (before, rows, row)

    @staticmethod
    def _seen(mask: object, rows: int, keys: int) -> np.ndarray:
        if mask is None:
            return np.ones((rows, keys), bool)
        if isinstance(mask, str):
            assert mask == "causal"
            return np.arange(keys) <= np.arange(keys - rows, keys)[:, None]
        assert mask.shape == (rows, keys)
        return np.array(mask)

    def keep(self, rows: int) -> None:
        """Drop all rows but the first ones."""
        self.cache.keep(rows)
        del self.truth[rows:]


@pytest.mark.parametrize("wrapped", [0, 5, 7, 8, 20])
def test_every_mix_of_two_passes_and_what_is_kept_of_them(wrapped: int) -> None:
    steps = [(rows, kept) for rows in range(1, 8) for kept in range(rows + 1)]
    for (first, kept), (second, last) in itertools.product(steps, steps[::3]):
        reader = Reader(SlidingCache(WINDOW, 7), WINDOW)
        for rows in itertools.chain([wrapped] if wrapped else []):
            reader.update(rows)
        reader.update(first)
        reader.keep(wrapped + kept)
        reader.update(second)
        reader.keep(wrapped + kept + last)
        reader.update(1)


@pytest.mark.parametrize("slack", [7, 8, 30, 300])
@pytest.mark.parametrize("window", [1, 2, 8, 300])
def test_long_random_mixes(window: int, slack: int) -> None:
    draw = random.Random(window * 1000 + slack)
    reader = Reader(SlidingCache(window, slack), window)
    furthest = 0
    for _ in range(150):
        before = len(reader.truth)
        rows = draw.choice([1, 1, 1, draw.randint(1, 7), draw.randint(1, 7), draw.randint(1, 4 * window + 2 * slack)])
        reader.update(rows)
        furthest = max(furthest, len(reader.truth))
        assert reader.cache.can_keep(max(0, min(len(reader.truth), furthest - slack)))
        if rows <= slack and draw.random() < 0.7:
            reader.keep(before + draw.randint(0, rows))


def test_the_full_cache_in_random_mixes() -> None:
    draw = random.Random(3)
    reader = Reader(FullCache(600))
    while len(reader.truth) < 500:
        reader.update(draw.choice([1, 3, 7, 90]))
        reader.keep(len(reader.truth) - draw.randint(0, min(60, len(reader.truth))))


def test_the_full_cache_grows_in_steps_up_to_its_capacity() -> None:
    reader = Reader(FullCache(300))
    sizes = []
    for rows in (1, 200, 60, 39):
        reader.update(rows)
        sizes.append(reader.cache.state[0].shape[2])
    assert sizes == [256, 256, 300, 300]
    with pytest.raises(AssertionError):
        reader.update(1)


@pytest.mark.parametrize("rows", [1, 5, 50, 500])
def test_memory_of_the_sliding_cache_is_bounded(rows: int) -> None:
    reader = Reader(SlidingCache(40, 20), 40)
    sizes = set()
    for _ in range(2 + 600 // rows):
        reader.update(rows)
        sizes.add(reader.cache.nbytes)
    assert max(sizes) <= (40 - 1 + 2 * 20) * (2 + 3) * 4
    assert max(sizes) == reader.cache.nbytes


def test_dropping_more_than_is_held_is_refused_and_changes_nothing() -> None:
    reader = Reader(SlidingCache(WINDOW, 4), WINDOW)
    for _ in range(100):
        reader.update(1)
    assert reader.cache.can_keep(96)
    assert not reader.cache.can_keep(40)
    assert not reader.cache.can_keep(101)
    with pytest.raises(AssertionError):
        reader.cache.keep(40)
    reader.update(3)
    assert reader.cache.can_keep(0) is False  # the first rows are gone: a new cache is needed


@pytest.mark.parametrize("cache", [FullCache(100), SlidingCache(WINDOW, 50)])
def test_a_mask_is_an_array_on_demand_and_none_when_all_is_seen(cache: FullCache | SlidingCache) -> None:
    rows = mx.zeros((1, 1, 5, 4))
    assert cache.make_mask(1) is None
    assert cache.make_mask(5) == "causal"
    cache.update_and_fetch(rows, rows)
    assert cache.make_mask(1) is None
    assert cache.make_mask(1, return_array=True) is None
    wanted = create_causal_mask(3, 5)
    assert mx.array_equal(cache.make_mask(3, return_array=True), wanted)
    wanted = create_causal_mask(3, 5, window_size=4)
    assert mx.array_equal(cache.make_mask(3, window_size=4), wanted)  # a narrower window than the cache's own
    assert mx.array_equal(cache.make_mask(1, window_size=4), create_causal_mask(1, 5, window_size=4))


def test_the_reader_catches_a_stock_cache_that_is_trimmed_after_it_wrapped() -> None:
    reader = Reader(TrimmedStock(WINDOW, 7), WINDOW)
    for _ in range(3):
        reader.update(6)
        reader.keep(len(reader.truth) - 3)
    with pytest.raises(AssertionError):
        reader.update(1)
