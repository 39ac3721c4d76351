"""Where the entries of closed ledgers must be after the calm: on their whole write sets, but for recorded gaps (W7).

As the floor's oracle (`tests.simulator.quorums`) this one tolerates what was on its way when the ledger was closed,
and does not look at what a recovery did not write back.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from replog.log.checking import JOB_KEY
from replog.protocol.fragment_copies import fixed_fragments
from replog.protocol.messages import AddRequest, CopyRequest, FenceRequest, Request
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.records.ledgers import decode_ledger
from replog.records.logs import decode_log
from replog.records.paths import ledger_key_path, log_key_path
from replog.testing.simulating.metastore import MetastoreServer
from replog.testing.simulating.processes import BookieHost
from tests.simulator.shells.world import JudgedWorld

_SLACK_S = 0.1


@attrs.define
class _Sender:
    """The adds of one process for one ledger. `adds` are the times of the last ones, by bookie and entry id."""

    adds: dict[tuple[str, int], float] = attrs.field(factory=dict)
    written_back: int | None = None  # the first entry
    is_recovery: bool = False


class WriteQuorums:
    """The adds to each bookie, and the closes of each ledger. `add_timeout_s` is after how long a client knows that an
    add that was not answered failed."""

    def __init__(
        self,
        world: JudgedWorld,
        bookies: Sequence[BookieHost],
        add_timeout_s: float,
        metastore: MetastoreServer,
        *,
        is_guaranteed: bool,
    ) -> None:
        self._world = world
        self._store = metastore.inner._store
        self._is_guaranteed = is_guaranteed
        self._bookies = {bookie.disk.content.bookie_id: bookie for bookie in bookies}
        self._add_timeout_s = add_timeout_s
        self._senders: dict[tuple[str, int], _Sender] = {}
        self._closers: dict[str, tuple[str, float]] = {}  # by nonce: the process, and when it first tried to

    def sent(self, client: str, process: str, request: Request) -> None:
        """A client sends this to a bookie."""
        if not isinstance(request, AddRequest | FenceRequest):
            return
        sender = self._senders.setdefault((client, request.ledger_id), _Sender())
        if isinstance(request, FenceRequest):
            sender.is_recovery = True
            return
        name = process.partition(".")[0]
        sender.adds.update(((name, entry_id), self._world.now_s) for entry_id in request.batch.entry_ids)
        if request.recovery and not isinstance(request, CopyRequest):
            first = request.batch.first_entry_id
            sender.written_back = first if sender.written_back is None else min(first, sender.written_back)

    def changing(self, process: str, key: str, value: bytes) -> None:
        """A process wants to change a value in the metastore."""
        if key.startswith("ledgers/"):
            metadata = decode_ledger(key, value)
            if metadata.state is LedgerState.CLOSED:
                closer, before = (process, self._world.now_s), self._stored(key)
                if before is not None and before.state is LedgerState.CLOSED:  # then who repairs it has not closed it
                    closer = self._closers.get(_nonce(before), closer)
                self._closers.setdefault(_nonce(metadata), closer)

    def _stored(self, key: str) -> LedgerMetadata | None:
        """A ledger's record as it is now: somebody else may have replaced bookies since. None if it was deleted."""
        return None if self._store.version(key) is None else decode_ledger(key, self._store.get(key).value)

    def check_full(self, ledger_id: int) -> None:
        """Somebody was told just now that this ledger is closed: if its write quorum is guaranteed, nothing may lack (W8)."""
        if not self._is_guaranteed or (metadata := self._stored(ledger_key_path(ledger_id))) is None:
            return
        self._world.count("a ledger is full")
        for fragment in fixed_fragments(metadata):
            for entry_id in range(fragment.first_entry_id, fragment.last_entry_id + 1):
                for index in metadata.quorum.write_set(entry_id):
                    bookie = self._bookies[fragment.ensemble[index]]
                    if not bookie.disk.stores(ledger_id, entry_id, fragment.term):
                        what = f"{bookie.name} lacks entry {entry_id} of ledger {ledger_id}"
                        self._world.violated("W8", f"{what}, whose write quorum is guaranteed: {metadata}")

    def check_log_full(self, name: str) -> None:
        """Somebody has rolled or taken over this log just now: all its ledgers but the last are full (W8)."""
        if self._is_guaranteed:
            key = log_key_path(name)
            log = decode_log(key, self._store.get(key).value)
            for segment in log.segments[:-1]:
                record = self._stored(ledger_key_path(segment.ledger_id))
                # Who hands in a job's ledgers does not promise that they are full.
                if record is not None and JOB_KEY not in record.custom:
                    self.check_full(segment.ledger_id)

    def judge(self, metadata: LedgerMetadata) -> None:
        """Looks for the entries of one ledger."""
        closer = self._closers.get(_nonce(metadata))
        if metadata.state is not LedgerState.CLOSED or closer is None or metadata.last_entry_id is None:
            return
        process, closed_s = closer
        sender = self._senders.get((process, metadata.ledger_id), _Sender())
        first = sender.written_back if sender.is_recovery else 0
        first = metadata.last_entry_id + 1 if first is None else max(first, metadata.trim_to)
        for entry_id in range(first, metadata.last_entry_id + 1):
            fragment, lacking = metadata.fragment_of(entry_id), metadata.lacking(entry_id)
            for index in metadata.quorum.write_set(entry_id):
                bookie = self._bookies[fragment.ensemble[index]]
                entry = metadata.ledger_id, entry_id
                # A member that dropped it as another's is a violation of F5, so `has_entry` would not do.
                if bookie.is_gone or entry in bookie.disk.forgotten or bookie.disk.stores(*entry, fragment.term):
                    self._world.count("entry on its write set")
                elif index in lacking:
                    self._world.count("a gap says that a bookie lacks an entry")
                else:
                    self._judge_lacking(metadata, entry_id, bookie, sender, closed_s)

    def _judge_lacking(
        self, metadata: LedgerMetadata, entry_id: int, bookie: BookieHost, sender: _Sender, closed_s: float
    ) -> None:
        sent_s = sender.adds.get((bookie.name, entry_id))
        if sent_s is not None and sent_s > closed_s - self._add_timeout_s - _SLACK_S:
            self._world.count("an add was on its way when its ledger was closed")
            return
        when = "was never sent it" if sent_s is None else f"was sent it {closed_s - sent_s:.3f} s before the end"
        self._world.violated(
            "W7",
            f"{bookie.name} lacks entry {entry_id} of ledger {metadata.ledger_id}, {when}, and no gap says so: "
            f"{metadata.gaps}",
        )


def _nonce(metadata: LedgerMetadata) -> str:
    return metadata.token.rpartition(".")[0]
