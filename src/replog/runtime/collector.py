"""Python's search for cycles of garbage, in processes that are replog's own: a bookie's, and those of Spark's that only plan.

The ledgers and segments in such a process have no cycles, and are searched all the same: again and again while they are
made, and later all at once, which stops the event loop for a second where there are a million ledgers. Objects are
freed as before, when no reference is left. A program that embeds replog decides for itself, but for the seconds in which a
storage with many ledgers opens.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections(*, is_kept: bool = False) -> Iterator[None]:
    """Stops the search while much is made. With `is_kept`, no later search looks at what there is at the end without an error,
    since it stays."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        if is_kept:
            gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
