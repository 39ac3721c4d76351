"""Clock and entropy of a task and of all tasks that it starts; simulations replace both.

The time of day, random choices and tokens come from the system by default. A simulation gives its processes others, by
`use_entropy` before anything else is made: then all choices of clients follow from a seed, and each process has its own
wall clock. The clock of deadlines is trio's, and not here.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextvars import ContextVar


class Entropy:
    """A source of time and of randomness; the system's, unless others are given."""

    def __init__(self, chooser: random.Random | None = None, time_ns: Callable[[], int] = time.time_ns) -> None:
        self.random = chooser or random.SystemRandom()
        self.time_ns = time_ns  # since the epoch, in UTC

    def token(self, size_bytes: int = 16) -> str:
        """A unique text, of twice as many hexadecimal digits."""
        return self.random.randbytes(size_bytes).hex()

    def time_ms(self) -> int:
        """The time of day in ms since the epoch."""
        return self.time_ns() // 1_000_000


_SYSTEM = Entropy()
_entropy: ContextVar[Entropy] = ContextVar("replog entropy", default=_SYSTEM)


def current_entropy() -> Entropy:
    """The source of this task."""
    return _entropy.get()


def use_entropy(entropy: Entropy) -> None:
    """Everything that this task, and all that it starts from now on, makes uses this source."""
    _entropy.set(entropy)
