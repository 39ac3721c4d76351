"""Tasks that wait until a key of an LMDB directory has another version. For one trio run.

LMDB does not report changes of other processes: one waiter has to look. One of the tasks looks for all of them, and
reads only after a commit: a thousand followers that looked by themselves took a whole processor.
"""

from __future__ import annotations

from collections.abc import Collection

import attrs
import trio

from replog.errors import MetastoreError
from replog.metastores.lmdb_environment import Environment, NeedsWriterError


@attrs.define(eq=False)
class _Wait:
    key: str
    version: int | None  # None: the key did not exist
    is_over: bool = False
    woken: trio.Event = attrs.field(factory=trio.Event)

    def end(self) -> None:
        self.is_over = True
        self.woken.set()


class KeyWaits:
    """The waits of one instance. Changes by other processes are looked for every `poll_s`."""

    def __init__(self, poll_s: float) -> None:
        self._poll_s = poll_s
        self._waits: dict[_Wait, None] = {}
        self._looker: _Wait | None = None
        self._last_change = -1  # when all were looked at
        self._is_any_fickle = False  # an announced key may vanish without a commit

    async def wait(self, environment: Environment, key: str, version: int | None) -> None:
        """Returns once the key has another version, or where that can't be found out: the caller looks then."""
        wait = _Wait(key, version)
        self._waits[wait] = None
        try:
            # After it was noted, so that no change between the caller's look and the wait is missed.
            is_fickle, _ = _look(environment, (wait,))
            self._is_any_fickle |= is_fickle
            while not wait.is_over:
                if self._looker is None:
                    self._looker = wait
                if self._looker is wait:
                    with trio.move_on_after(self._poll_s):
                        await wait.woken.wait()
                    if self._is_any_fickle or not environment.is_unchanged(self._last_change):
                        self.look(environment)
                else:
                    await wait.woken.wait()
                    wait.woken = trio.Event()
        finally:
            del self._waits[wait]
            if self._looker is wait:
                self._looker = None
            # Also if this one was only about to take over.
            if self._looker is None and self._waits:
                next(iter(self._waits)).woken.set()  # it looks from now on

    def look(self, environment: Environment) -> None:
        """Something may have changed: ends the waits whose keys did."""
        if self._waits:
            self._is_any_fickle, self._last_change = _look(environment, self._waits)

    def end(self) -> None:
        """Ends all waits."""
        for wait in self._waits:
            wait.end()


def _look(environment: Environment, waits: Collection[_Wait]) -> tuple[bool, int]:
    """Ends the waits whose keys have other versions, or all if that can't be found out. Returns whether one of the keys may
    change without a commit, and the last change that was seen."""
    keys = {wait.key for wait in waits}
    try:
        found, last_change = environment.read(
            lambda reading: ({key: reading.look(key) for key in keys}, reading.last_change)
        )
    except (MetastoreError, NeedsWriterError):
        for wait in waits:
            wait.end()
        return False, -1
    for wait in waits:
        version, _ = found[wait.key]
        if version != wait.version:
            wait.end()
    return any(is_fickle for _, is_fickle in found.values()), last_change
