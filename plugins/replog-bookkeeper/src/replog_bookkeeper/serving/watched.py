"""The long polls of all connections, by ledger. A fence answers them: nothing may come any more."""

from __future__ import annotations

from collections.abc import Callable


class LedgersWatched:
    """The long polls of one bookie."""

    def __init__(self) -> None:
        self._wakes: dict[int, set[Callable[[], None]]] = {}

    def wait(self, ledger_id: int, wake: Callable[[], None]) -> None:
        """Calls `wake` when the ledger is fenced."""
        self._wakes.setdefault(ledger_id, set()).add(wake)

    def forget(self, ledger_id: int, wake: Callable[[], None]) -> None:
        """It is not waited for any more."""
        waiting = self._wakes.get(ledger_id, set())
        waiting.discard(wake)
        if not waiting:
            self._wakes.pop(ledger_id, None)

    def fenced(self, ledger_id: int) -> None:
        """Wakes all that wait for this ledger."""
        for wake in self._wakes.pop(ledger_id, ()):
            wake()
