"""Which window the n-th draw of a training is: a pure function of seed and n.

Windows are visited in passes, each a permutation of all of them that only seed and pass decide.
With weights, every data set of a mixture has passes of its own, and of every thousand draws its
share, mixed at random.
"""

import functools
from collections.abc import Sequence

import numpy as np

ROUND = 1000
"""Draws in which every data set of a weighted mixture gets its share exactly."""


class Draws:
    """Draws from pools of windows, which are numbered consecutively, pool after pool."""

    def __init__(self, sizes: Sequence[int], quotas: Sequence[int] = (ROUND,)) -> None:
        """Begin without favoured windows.

        Args:
          sizes: windows per pool, at least one each.
          quotas: draws of each pool per round; they add up to `ROUND`.
        """
        self._quotas = tuple(quotas)
        ends = np.cumsum(sizes)
        single = len(sizes) == 1
        self._pools = [
            _Pool(() if single else (k,), int(end) - size, size)
            for k, (size, end) in enumerate(zip(sizes, ends, strict=True))
        ]

    def favour(self, windows: Sequence[int], share: float) -> None:
        """Draw a share of all windows from some of them; arguments as of `WindowIndex.favour`."""
        for pool in self._pools:
            pool.favour(np.array(windows, np.int64), share)

    def __call__(self, seed: int, position: int) -> int:
        """Return the number of the window that a draw takes.

        Args:
          seed: of the order.
          position: number of the draw, from 0.
        """
        if len(self._pools) == 1:
            return self._pools[0].draw(seed, position)
        turn, place = divmod(position, ROUND)
        dealt, before = _dealt(seed, turn, self._quotas)
        k = int(dealt[place])
        return self._pools[k].draw(seed, turn * self._quotas[k] + int(before[place]))


class _Pool:
    """Consecutive windows that are drawn from in passes; `key` tells pools' permutations apart."""

    def __init__(self, key: tuple[int, ...], first: int, size: int) -> None:
        self._key, self._first, self._size = key, first, size
        self._favoured, self._share = np.zeros(0, np.int64), 0.0

    def favour(self, windows: np.ndarray, share: float) -> None:
        own = windows[(windows >= self._first) & (windows < self._first + self._size)]
        self._favoured, self._share = own, share if len(own) else 0.0

    def draw(self, seed: int, position: int) -> int:
        favoured = int(position * self._share)  # among the draws before this one
        if int((position + 1) * self._share) > favoured:
            size = len(self._favoured)
            order = _permutation((seed, favoured // size, *self._key), size)
            return int(self._favoured[order[favoured % size]])
        others = position - favoured
        order = _permutation((seed, others // self._size, *self._key), self._size)
        return self._first + int(order[others % self._size])


def split_round(weights: Sequence[float]) -> tuple[int, ...]:
    """Return how many draws of a round each pool gets: its share, rounded to whole draws."""
    shares = ROUND * np.asarray(weights, np.float64) / np.sum(weights)
    quotas = np.floor(shares).astype(np.int64)
    rest = ROUND - int(quotas.sum())
    quotas[np.argsort(quotas - shares, kind="stable")[:rest]] += 1
    return tuple(quotas.tolist())


@functools.lru_cache(maxsize=32)
def _permutation(key: tuple[int, ...], size: int) -> np.ndarray:
    return np.random.default_rng(key).permutation(size)


@functools.lru_cache(maxsize=8)
def _dealt(seed: int, turn: int, quotas: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Deal a round: for each draw its pool, and how often that was drawn before in the round."""
    # Four numbers, where those of the windows' permutations are seeded with two or three.
    rng = np.random.default_rng((seed, turn, len(quotas), ROUND))
    dealt = rng.permutation(np.repeat(np.arange(len(quotas)), quotas))
    before = np.zeros(ROUND, np.int64)
    for k, quota in enumerate(quotas):
        before[dealt == k] = np.arange(quota)
    return dealt, before
