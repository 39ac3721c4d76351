"""Many cases in one test, each of them named if it fails.

A test of its own for a case of microseconds costs a thousand times the case: it is collected by each worker, set up, and
reported to the process that collects the results. Cases that take milliseconds are better off with `pytest.mark.parametrize`.
"""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*names: object) -> Iterator[None]:
    """Add the names to what is raised within."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case: {', '.join(map(str, names))}")
        raise
