"""Mutants of the ways into a trio run from other programs: what is interrupted hangs, or takes the client with it."""

from tests.mutation.table import SourceMutant

_TESTS = ("tests/faces/test_interrupted.py", "tests/blocking", "tests/aio")


def _mutant(name: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(f"faces-{name}", "interruptions", file, old, new, why, _TESTS)


MUTANTS = (
    _mutant(
        "own-thread-waits",
        "blocking/portal.py",
        "    if is_own_thread():\n        raise OwnThreadError(",
        "    if False:\n        raise OwnThreadError(",
        "a finalizer that the collector runs in the trio thread waits for that thread, without end",
    ),
    _mutant(
        "interrupted-wait-takes-lock-twice",
        "blocking/portal.py",
        "return self._is_given or (self._given.acquire(timeout=timeout_s) and self._is_given)",
        "return self._given.acquire(timeout=timeout_s) and self._is_given",
        "a caller that was interrupted right after its answer came waits for it once more, for ten seconds",
    ),
    _mutant(
        "worker-between-jobs-is-programs",
        "runtime/own_threads.py",
        "    return _mark.is_own or (_mark.is_trios and not _is_in_programs_job())\n",
        "    return _mark.is_trios and not _is_in_programs_job()\n",
        "a logging handler is called in the trio thread, and waits for itself",
    ),
    _mutant(
        "interrupt-between-steps",
        "aio/interrupts.py",
        "    if _is_between_steps(loop, frame):\n",
        "    if loop.is_closed():\n",
        "Ctrl-C in the middle of a turn of trio ends the run, and the client with it",
    ),
    _mutant(
        "interrupt-is-trios",
        "aio/host.py",
        "        begin_deferring()\n",
        "",
        "trio takes Ctrl-C for itself: the program goes on, and the client dies",
    ),
    _mutant(
        "closed-loop-keeps-run",
        "aio/host.py",
        "        if host is not None and self._loop.is_closed():\n",
        "        if host is None and self._loop.is_closed():\n",
        "a loop that is closed under a client keeps its thread from running trio ever again",
    ),
    _mutant(
        "turn-is-forgotten",
        "aio/call_soon.py",
        "            self._take_turn()\n            while self._calls:\n                self._make_next()\n",
        "            while self._calls:\n                self._make_next()\n",
        "the run of a closed loop never gets its last turns: what is open stays open",
    ),
)
