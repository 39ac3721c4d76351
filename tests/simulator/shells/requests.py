"""Whether a log's leader answers committers as L10 says: seen from the log's record, and from whom committers fence.

- A leader adds before its next ledger just what one request in the record asks for, and takes that out.
- Takeovers that create a ledger, and commits that depose, leave no request in the record (L7).
- After it has asked, no committer fences the leader that answers it: neither before the answer, nor where the leader goes on.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from replog.metastores.memory import MemoryMetastore
from replog.protocol.messages import FenceRequest, Request
from replog.protocol.model import LogMetadata
from replog.records.logs import decode_log
from replog.records.paths import log_key_path
from tests.simulator.shells.world import JudgedWorld

REQUESTS = "requests"  # the strategy


@attrs.define
class _Attempt:
    """One call of a committer."""

    ledger_ids: tuple[int, ...]
    fenced: dict[int, None] = attrs.field(factory=dict)  # ledgers, since it has asked
    goes_on_in: int | None = None  # the ledger of the leader that answered it


class Requests:
    """Looks at each change of one log's record from now on."""

    def __init__(self, world: JudgedWorld, metastore: MemoryMetastore, log_name: str) -> None:
        self._world = world
        self._key = log_key_path(log_name)
        self._store = metastore._store
        self._attempts: dict[str, _Attempt] = {}  # by the committer's process
        self.on_answer: Callable[[], None] = lambda: (
            None
        )  # called when a leader's answer was written, and it does not know yet
        self._put = self._store.put
        vars(self._store).update(put=self._changed)

    def begins(self, process: str, ledger_ids: list[int]) -> None:
        """A committer is about to hand these ledgers in, once more perhaps."""
        self._attempts[process] = _Attempt(tuple(ledger_ids))

    def sent(self, process: str, request: Request) -> None:
        """A client sends this to a bookie."""
        attempt = self._attempts.get(process)
        if attempt is None or not isinstance(request, FenceRequest):
            return
        attempt.fenced[request.ledger_id] = None
        if request.ledger_id == attempt.goes_on_in:
            self._world.violated("L10", f"{process} was answered, and fences ledger {request.ledger_id} of that leader")

    def _changed(self, key: str, value: bytes, expected: int) -> int:
        before = self._store.get(key).value if key == self._key and self._store.version(key) is not None else None
        version = self._put(key, value, expected)
        if before is not None:
            self._compare(decode_log(key, before), decode_log(key, value))
        return version

    def _compare(self, before: LogMetadata, after: LogMetadata) -> None:
        for request in after.requests:
            if request not in before.requests:
                self._world.count("committer asks a leader")
                for attempt in self._asking(request.addition.ledger_ids):
                    attempt.fenced.clear()
        new = [each.ledger_id for each in after.segments if each.number >= before.next_segment_number]
        if after.first_open_number < before.next_segment_number < after.next_segment_number:
            self._rolled(before, after, tuple(new[:-1]))
        elif new and after.requests:
            self._world.violated("L7", f"nobody leads any more, and the log's record keeps {after.requests}")

    def _rolled(self, before: LogMetadata, after: LogMetadata, added: tuple[int, ...]) -> None:
        """A leader has gone on to another ledger, with these before it."""
        asked = [each for each in before.requests if each.addition.ledger_ids == added and each not in after.requests]
        if added and not asked:
            self._world.violated("L10", f"a leader added ledgers {added}, and these were asked for: {before.requests}")
        leaders = before.segments[-1].ledger_id, after.segments[-1].ledger_id
        for attempt in self._asking(added):
            self._world.count("leader answers a committer")
            self.on_answer()
            attempt.goes_on_in = leaders[1]
            if fenced := attempt.fenced.keys() & set(leaders):
                self._world.violated("L10", f"ledgers {added} are added by a leader whose ledgers {fenced} were fenced")

    def _asking(self, ledger_ids: tuple[int, ...]) -> list[_Attempt]:
        return [each for each in self._attempts.values() if ledger_ids and each.ledger_ids == ledger_ids]
