"""Writers for every thread: any number of them may use one at once, and their entries share batches and syncs.

A call that is interrupted (`KeyboardInterrupt`) is cancelled: what it was to write has an unknown outcome, as in trio.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from replog.blocking.contexts import Opened
from replog.blocking.faces import FACES
from replog.client.ledger_writer import LedgerWriter as TrioLedgerWriter
from replog.log.log_writer import LogWriter as TrioLogWriter
from replog.protocol.batch import Payloads
from replog.protocol.envelope import pack, pack_each


class _Writer(Opened):
    """The common part of the writers of ledgers and of logs: the waits that need no trio task for each call."""

    def append(self, data: bytes) -> Any:
        entries = self._inner._entries
        return self._way.call_confirmed(
            lambda ended: entries.append_nowait(data, ended), entries.check_confirmed, lambda: self._inner.append(data)
        )

    def extend(self, data: Iterable[bytes]) -> Any:
        payloads = Payloads(data)  # iterated here, so that its errors are raised in the caller's thread
        entries = self._inner._entries

        def check(places: Sequence[Any]) -> None:
            if places:
                entries.check_confirmed(places[-1])

        return self._way.call_confirmed(
            lambda ended: entries.extend_nowait(payloads, ended), check, lambda: self._inner.extend(payloads)
        )


@FACES.face_of(TrioLedgerWriter)
class LedgerWriter(_Writer):
    """The one writer of a ledger, for every thread. Made by `Client.create_ledger`; places are entry ids."""


@FACES.face_of(TrioLogWriter)
class LogWriter(_Writer):
    """The one writer of a log, until another client takes over, for every thread. Made by `Client.write_log`."""

    def append(
        self,
        data: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        id: tuple[str, int] | None = None,
    ) -> Any:
        if id is not None:
            return self._way.call(self._inner.append, data, key=key, headers=headers, id=id)
        return super().append(pack(data, key=key, headers=headers))

    def extend(
        self,
        data: Iterable[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
    ) -> Any:
        return super().extend(pack_each(data, keys, headers))
