"""Lists the Python functions that one append enters, in order: `python -m benchmarks.calls [--bookies 3]`.

For whoever shortens this path, or reads it for the first time. The setting is that of an application with embedded
bookies: metastore lmdb, storage files, the public API. One task appends 100 B at a time, so each append is alone and warm.
All threads count, because a bookie may commit in a thread of its own. Only replog's own functions count: what they call of
trio and of the standard library depends on versions. An `async` function that is resumed counts again.

Appends differ: a bookie chooses by measured times where it commits, every eighth append gives way to other tasks, and with
several bookies a late answer belongs to the append before. So many appends are recorded, the calls that occur most often are
printed, and how many calls the middle one of all has.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import trio

import replog

_SOURCES = str(Path(replog.__file__).parent) + os.sep
_WARM_UP = 200  # appends before the first that is recorded
_APPENDS = 100
_PAYLOAD = bytes(100)


@attrs.frozen
class Call:
    """A function that was entered, or a coroutine that was resumed. `depth` counts replog's own callers."""

    is_in_loop: bool
    file: str
    function: str
    depth: int


class Recorder:
    """Records the functions that all threads enter while it is switched on."""

    def __init__(self) -> None:
        self._calls: list[Call] | None = None
        self._loop_thread = threading.get_ident()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Profiles this thread, and those that are started meanwhile."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def start(self) -> None:
        """Forgets what was recorded, and begins."""
        self._calls = []

    def stop(self) -> tuple[Call, ...]:
        """Ends recording, and returns what was recorded."""
        calls, self._calls = self._calls or [], None
        return tuple(calls)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        calls = self._calls
        if calls is None or event != "call" or not frame.f_code.co_filename.startswith(_SOURCES):
            return
        depth, caller = 0, frame.f_back
        while caller is not None:
            depth += caller.f_code.co_filename.startswith(_SOURCES)
            caller = caller.f_back
        code = frame.f_code
        is_in_loop = threading.get_ident() == self._loop_thread
        calls.append(Call(is_in_loop, code.co_filename.removeprefix(_SOURCES), code.co_qualname, depth))


async def record(bookies: int, storage: str, directory: Path) -> list[tuple[Call, ...]]:
    """The calls of each of many appends, one after the other."""
    recorder, found = Recorder(), []
    with recorder.installed():
        async with (
            replog.embed(directory, bookies=bookies, storage=storage) as client,
            client.write_log("calls") as log,
        ):
            for _ in range(_WARM_UP):
                await log.append(_PAYLOAD)
            for _ in range(_APPENDS):
                recorder.start()
                await log.append(_PAYLOAD)
                found.append(recorder.stop())
    return found


def most_frequent(appends: Sequence[tuple[Call, ...]]) -> tuple[tuple[Call, ...], int]:
    """The calls of the kind of append that occurs most often, and how often it occurs."""
    return Counter(appends).most_common(1)[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Records, prints, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description="List what one append enters.")
    parser.add_argument("--bookies", type=int, default=1)
    parser.add_argument("--storage", default="files", help="of the bookies; default: files")
    parser.add_argument("--totals", action="store_true", help="print only the totals")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="replog-calls-") as directory:
        appends = trio.run(record, options.bookies, options.storage, Path(directory))
    calls, times = most_frequent(appends)
    if not options.totals:
        for call in calls:
            thread = "" if call.is_in_loop else "  (another thread)"
            print(f"{'  ' * call.depth}{call.function}  {call.file}{thread}")
    functions = {(call.file, call.function) for call in calls}
    files = {call.file for call in calls}
    print(
        f"an append with bookies={options.bookies}, storage={options.storage}: {len(calls)} calls of {len(functions)} "
        f"functions in {len(files)} files ({times} of {len(appends)} appends are exactly like this; the median is "
        f"{statistics.median(map(len, appends)):g} calls)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
