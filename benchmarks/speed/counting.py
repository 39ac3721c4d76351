"""Counts what a piece of work executes: the same number each time it is run, on any machine of the same Python version.

Counted is replog's own code and what it calls of the standard library and of attrs. The event loop's inner life is not:
it would change with trio's version. What replog makes it do shows as calls into it, and as turns of tasks.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import attrs
import trio

import replog

_REPLOG = str(Path(replog.__file__).parent) + os.sep
_HARNESS = str(Path(__file__).parent.parent) + os.sep
_LOOP = tuple(
    str(Path(trio.__file__).parent.parent / name) + os.sep for name in ("trio", "outcome", "sortedcontainers")
)
_GENERATED = re.compile(r"<attrs generated .*\breplog\.")  # as attrs names the source of the methods that it makes

_OURS, _OTHER, _FOREIGN = range(
    3
)  # replog's; anybody's: counts if replog called it; the event loop's and the benchmark's


@attrs.define
class Counts:
    """What some work executed."""

    calls: int = 0  # of and by replog's code, of Python functions and of C functions
    instructions: int = 0  # of Python bytecode
    steps: int = 0  # turns of tasks


@contextmanager
def counting() -> Iterator[Counts]:
    """Counts what this thread executes until the context is left, in functions that are called or resumed meanwhile.

    Raises RuntimeError where something else traces already: a debugger, or who measures coverage."""
    if sys.gettrace() is not None or sys.getprofile() is not None:
        raise RuntimeError("this thread is traced already: counts would be wrong, or what traces would miss them")
    counter = _Counter()
    in_trio = trio.lowlevel.in_trio_run()
    if in_trio:
        trio.lowlevel.add_instrument(counter)
    was_collecting = gc.isenabled()
    gc.collect()
    gc.disable()  # what it calls when it happens to run is no part of the work
    sys.setprofile(counter.profile)
    sys.settrace(counter.trace)
    try:
        yield counter.counts
    finally:
        sys.settrace(None)
        sys.setprofile(None)
        if was_collecting:
            gc.enable()
        if in_trio:
            trio.lowlevel.remove_instrument(counter)


class _Counter(trio.abc.Instrument):
    def __init__(self) -> None:
        self.counts = Counts()
        self._kinds: dict[CodeType, int] = {}

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.counts.steps += 1

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and self._is_counted(frame):
            self.counts.calls += 1

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._is_counted(frame):
            if frame.f_back is not None and self._is_counted(frame.f_back):
                self.counts.calls += 1  # into the event loop
            return None
        self.counts.calls += 1
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return self._trace_here

    def _trace_here(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.counts.instructions += 1
        return self._trace_here

    def _is_counted(self, frame: FrameType) -> bool:
        """Whether this is replog's code, or was called by it."""
        caller: FrameType | None = frame
        while caller is not None:
            kind = self._kind(caller.f_code)
            if kind != _OTHER:
                return kind == _OURS
            caller = caller.f_back
        return False

    def _kind(self, code: CodeType) -> int:
        kind = self._kinds.get(code)
        if kind is None:
            kind = self._kinds[code] = _kind_of(code.co_filename)
        return kind


def _kind_of(file: str) -> int:
    if file.startswith(_REPLOG) or _GENERATED.match(file):
        return _OURS
    return _FOREIGN if file.startswith((_HARNESS, *_LOOP)) else _OTHER


class Held:
    """How many bytes were taken at most beyond those that were there at first."""

    def __init__(self) -> None:
        self.peak_bytes = 0


@contextmanager
def holding() -> Iterator[Held]:
    """Measures the memory that is held at most until the context is left: what is copied counts while the copy lives.

    Raises RuntimeError where memory is traced already."""
    if tracemalloc.is_tracing():
        raise RuntimeError("memory is traced already")
    held = Held()
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    try:
        yield held
    finally:
        held.peak_bytes = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
