"""Chance that a seed decides: SplitMix64 over a hash of (seed, name)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["Dice"]

T = TypeVar("T")
_MASK = (1 << 64) - 1


class Dice:
    """A stream of numbers that depends on ``seed`` and ``name`` alone, in every process alike."""

    def __init__(self, seed: int, name: str) -> None:
        digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
        self._state = int.from_bytes(digest)

    def bits(self) -> int:
        """The next 64 bits."""
        self._state = state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        return state ^ (state >> 31)

    def below(self, limit: int) -> int:
        """0 to ``limit`` - 1."""
        return self.bits() * limit >> 64

    def share(self) -> float:
        """0 up to, not including, 1."""
        return (self.bits() >> 11) / (1 << 53)

    def chance(self, share: float) -> bool:
        return self.share() < share

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.share()

    def spread(self, mean: float) -> float:
        """Exponential: waits between events that know nothing of each other."""
        return -mean * math.log(1.0 - self.share())

    def pick(self, things: Sequence[T]) -> T:
        return things[self.below(len(things))]
