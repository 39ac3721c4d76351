"""Drives the machines of the floor by hand, message by message, so that a test reads like a counterexample.

A `Cluster` has bookies (`LedgerOnBookie` over a disk in memory) and a metastore with CAS. An actor wraps one client's
machine and keeps what the machine asked for in `waiting`, until the test says what becomes of it:

    deliver   the request arrives and its answer comes back
    arrive    the request arrives; the answer comes back when the returned function is called
    lose      neither arrives, and nobody is told (yet)
    fail      the request is lost, and the client's deadline passes
    run       everything is delivered until nothing waits; silent bookies are waited for last
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import attrs

from replog.errors import RemoteProtocolError, ReplogError
from replog.protocol.digest import Digest, DigestType, ledger_key, ledger_key_check
from replog.protocol.effects import (
    AwaitSilentBookies,
    ChooseReplacements,
    Confirmed,
    Delivered,
    Failed,
    Finished,
    ReadMetadata,
    SendAdd,
    SendFence,
    SendLastAddConfirmed,
    SendRead,
    SendReadLastAddConfirmed,
    SendRecoveryRead,
    WriteMetadata,
)
from replog.protocol.messages import (
    DENIALS,
    AddRequest,
    FenceRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.model import (
    Fragment,
    LedgerMetadata,
    LogMetadata,
    PendingLedger,
    Segment,
)
from replog.protocol.quorum import Quorum
from replog.protocol.reading import LedgerReading
from replog.protocol.recovery import LedgerRecovery
from replog.protocol.writing import LedgerWriting
from tests.protocol.bookies import Bookie

PASSWORD = b"open sesame"
THREE = Quorum(3, 3, 2)
STRIPED = Quorum(5, 3, 2)

Tell = Callable[[], None]


class Cluster:
    """Bookies b1, b2, ... and a metastore. Ledgers begin on the first E bookies; the others are spare."""

    def __init__(self, quorum: Quorum = THREE, bookies: int = 8, digest_type: DigestType = DigestType.CRC32C) -> None:
        self.quorum = quorum
        self.digest_type = digest_type
        self.bookies = {f"b{number}": Bookie() for number in range(1, bookies + 1)}
        self.down: set[str] = set()
        self.created: dict[int, LedgerMetadata] = {}  # as their creators know them
        self.records: dict[int, tuple[LedgerMetadata, int]] = {}
        self.logs: dict[str, tuple[LogMetadata, int]] = {}
        self.log_pages: dict[int, tuple[Segment, ...]] = {}  # of the one log
        self.pending: dict[int, PendingLedger] = {}  # for the one log
        self.answered: dict[str, tuple[int, ...]] = {}  # requests that leaders of the one log granted: their ledgers
        self.keeps_pending = False  # as if all that take over died right after their CAS
        self.ledger_ids = itertools.count(1)  # of ledgers that logs create: never reused

    def __getitem__(self, bookie_id: str) -> Bookie:
        return self.bookies[bookie_id]

    def create_ledger(self, ledger_id: int = 7, *, unbounded: bool = False) -> LedgerMetadata:
        metadata = LedgerMetadata(
            ledger_id,
            self.quorum,
            self.digest_type,
            ledger_key_check(ledger_key(ledger_id, PASSWORD)),
            (Fragment(0, tuple(self.bookies)[: self.quorum.ensemble]),),
            token=f"creator of {ledger_id}",
            is_unbounded=unbounded,
            owner="w1" if unbounded else "",
        )
        self.created[ledger_id] = metadata
        self.records[ledger_id] = (metadata, 0)
        return metadata

    def metadata(self, ledger_id: int = 7) -> LedgerMetadata:
        return self.records[ledger_id][0]

    def change(self, metadata: LedgerMetadata) -> None:
        """Somebody else changes the record: an administrator, a repair."""
        self.records[metadata.ledger_id] = (
            attrs.evolve(metadata, token="somebody else's"),
            self.records[metadata.ledger_id][1] + 1,
        )

    def cas(self, metadata: LedgerMetadata, expected: int) -> int | None:
        version = self.records[metadata.ledger_id][1] if metadata.ledger_id in self.records else None
        if version is None or version != expected:
            return None
        self.records[metadata.ledger_id] = (metadata, version + 1)
        return version + 1

    def digest(self, ledger_id: int = 7) -> Digest:
        return Digest(self.digest_type, ledger_id, PASSWORD)

    def writer(self, ledger_id: int = 7, nonce: str = "w1", missing: int = 0, kept_bytes_max: int = 1 << 20) -> Writer:
        """Its creator's: whatever has become of the ledger since. The indices in `missing` were away at its creation."""
        if ledger_id not in self.created:
            self.create_ledger(ledger_id)
        machine = LedgerWriting(
            self.created[ledger_id],
            0,
            self.digest(ledger_id),
            nonce,
            missing=missing,
            kept_bytes_max=kept_bytes_max,
        )
        return Writer(self, machine, ledger_id)

    def recovery(self, ledger_id: int = 7, nonce: str = "w2", *, takes_over: bool = False) -> Recovery:
        metadata, version = self.records[ledger_id]
        machine = LedgerRecovery(metadata, version, self.digest(ledger_id), nonce, takes_over=takes_over)
        return Recovery(self, machine, ledger_id)

    def takeover(self, nonce: str = "w2", ledger_id: int = 7) -> Recovery:
        """Of an unbounded ledger."""
        return self.recovery(ledger_id, nonce, takes_over=True)

    def taken_over(self, nonce: str = "w2", ledger_id: int = 7) -> Writer:
        """The writer of the next term, once its takeover has ended."""
        return self.takeover(nonce, ledger_id).writer()

    def reader(self, ledger_id: int = 7, first_entry_id: int = 0, order: Sequence[str] = ()) -> Reader:
        """A reader that asks these bookies first, in this order."""
        metadata, _ = self.records[ledger_id]

        def read_order(write_set: Sequence[int], _ensemble: tuple[str, ...]) -> list[int]:
            names = metadata.last_fragment.ensemble
            return sorted(write_set, key=lambda index: order.index(names[index]) if names[index] in order else 99)

        machine = LedgerReading(metadata, self.digest(ledger_id), first_entry_id, read_order)
        return Reader(self, machine, ledger_id)

    def holders(self, entry_id: int, ledger_id: int = 7) -> set[str]:
        """The bookies whose disk has the entry."""
        return {name for name, bookie in self.bookies.items() if bookie.disk.holds(ledger_id, entry_id)}

    def copies(self, entry_id: int, ledger_id: int = 7) -> int:
        """How many of the write set that the metadata names have the entry on disk."""
        ensemble = self.metadata(ledger_id).fragment_of(entry_id).ensemble
        named = {ensemble[index] for index in self.quorum.write_set(entry_id)}
        return len(named & self.holders(entry_id, ledger_id))

    def replacements(self, effect: ChooseReplacements) -> dict[int, str]:
        """The first spare bookies that are up."""
        taken = effect.excluded | set(effect.metadata.last_fragment.ensemble) | self.down
        spare = [name for name in self.bookies if name not in taken]
        return dict(zip(effect.failed, spare, strict=False))


class Actor:
    """One client, and what its machine waits for."""

    term: int
    machine: Any

    def __init__(self, cluster: Cluster, ledger_id: int) -> None:
        self.cluster = cluster
        self.ledger_id = ledger_id
        self.key = ledger_key(ledger_id, PASSWORD)
        self.waiting: list[Any] = []
        self.confirmed: list[int] = []
        self.payloads: list[bytes] = []
        self.finished: LedgerMetadata | None = None
        self.error: ReplogError | None = None

    def collect(self) -> None:
        """Drains the machine's effects."""
        for effect in self.machine.take_effects():
            assert self.finished is None, "nothing follows the end"
            assert self.error is None, "nothing follows the end"
            if isinstance(effect, Confirmed):
                self.confirmed.append(effect.last_add_confirmed)
            elif isinstance(effect, Delivered):
                self.payloads += _trimmed(effect)
            elif isinstance(effect, Finished):
                self.finished = effect.metadata
            elif isinstance(effect, Failed):
                self.error = effect.error
            else:
                self.waiting.append(effect)

    def find(self, kind: type, bookie_id: str | None = None, entry_id: int | None = None) -> list[Any]:
        """The waiting effects of this kind, to this bookie, about this entry."""
        return [
            effect
            for effect in self.waiting
            if isinstance(effect, kind)
            and (bookie_id is None or getattr(effect, "bookie_id", None) == bookie_id)
            and (entry_id is None or _entry_id(effect) == entry_id)
        ]

    def take(self, kind: type, bookie_id: str | None = None, entry_id: int | None = None) -> Any:
        found = self.find(kind, bookie_id, entry_id)
        assert found, f"nothing waits like {kind.__name__} {bookie_id} {entry_id}; waiting: {self.waiting}"
        self.waiting.remove(found[0])
        return found[0]

    lose = take

    def arrive(self, kind: type, bookie_id: str | None = None, entry_id: int | None = None) -> Tell:
        return self._arrive(self.take(kind, bookie_id, entry_id))

    def deliver(self, kind: type, bookie_id: str | None = None, entry_id: int | None = None) -> None:
        self.arrive(kind, bookie_id, entry_id)()

    def fail(self, kind: type, bookie_id: str | None = None, entry_id: int | None = None) -> None:
        self._tell(lambda: self._silent(self.take(kind, bookie_id, entry_id)))

    def run(self) -> None:
        """Delivers everything until nothing waits."""
        self.collect()
        for _ in range(100_000):
            if not self.waiting:
                return
            self.waiting.sort(key=lambda effect: isinstance(effect, AwaitSilentBookies))
            self._arrive(self.waiting.pop(0))()
        raise AssertionError("this never ends")

    def run_without(self, kind: type) -> None:
        """Delivers everything but effects of this kind."""
        self.collect()
        while others := [effect for effect in self.waiting if not isinstance(effect, kind)]:
            self.waiting.remove(others[0])
            self._arrive(others[0])()

    def choose(self, chosen: Mapping[int, str]) -> None:
        """The placement's answer, by hand."""
        self.lose(ChooseReplacements)
        self.machine.replacements_chosen(chosen)
        self.collect()

    def write_loses_answer(self) -> None:
        """The CAS happens, and its answer is lost."""
        self._cas(self.take(WriteMetadata))
        self.machine.metadata_uncertain()
        self.collect()

    def write_loses_request(self) -> Callable[[], int | None]:
        """The CAS is lost on its way, or merely late: then the returned function lets it happen."""
        effect = self.take(WriteMetadata)
        self.machine.metadata_uncertain()
        self.collect()
        return lambda: self._cas(effect)

    def _cas(self, effect: WriteMetadata) -> int | None:
        return self.cluster.cas(effect.metadata, effect.expected)

    def _tell(self, tell: Tell) -> None:
        tell()
        self.collect()

    def _arrive(self, effect: Any) -> Tell:
        if getattr(effect, "bookie_id", None) in self.cluster.down:
            return lambda: self._tell(lambda: self._silent(effect))
        told = self._handle(effect)
        return lambda: self._tell(told)

    def _handle(self, effect: Any) -> Tell:
        """Lets the effect happen, and returns what tells the machine."""
        if isinstance(effect, ChooseReplacements):
            chosen = self.cluster.replacements(effect)
            return lambda: self.machine.replacements_chosen(chosen)
        if isinstance(effect, WriteMetadata):
            version = self._cas(effect)
            return lambda: (
                self.machine.metadata_conflict() if version is None else self.machine.metadata_written(version)
            )
        if isinstance(effect, ReadMetadata):
            found = self.cluster.records.get(self.ledger_id)
            return lambda: self.machine.metadata_missing() if found is None else self._metadata_read(*found)
        return self._request(effect, self.cluster[effect.bookie_id])

    def _metadata_read(self, metadata: LedgerMetadata, version: int) -> None:
        self.machine.metadata_read(metadata, version)

    def _request(self, effect: Any, bookie: Bookie) -> Tell:
        raise NotImplementedError

    def _silent(self, effect: Any) -> None:
        raise NotImplementedError

    def add_request(self, effect: SendAdd) -> AddRequest:
        return AddRequest(0, self.ledger_id, self.key, self.term, effect.batch, effect.recovery, effect.proof)


class Writer(Actor):
    """The client that created the ledger, or took it over."""

    def __init__(self, cluster: Cluster, machine: LedgerWriting, ledger_id: int) -> None:
        super().__init__(cluster, ledger_id)
        self.machine: LedgerWriting = machine
        self.term = machine.metadata.term

    def add(self, *payloads: bytes) -> None:
        """One gathering."""
        self.machine.add(payloads, timestamp_ns=1)
        self.collect()

    def close(self) -> None:
        self.machine.close()
        self.collect()

    def bookie_failed(self, bookie_id: str) -> None:
        """Something sent to this bookie got no answer in time."""
        self.machine.bookie_failed(self.machine.ensemble().index(bookie_id), bookie_id)
        self.collect()

    def _request(self, effect: Any, bookie: Bookie) -> Tell:
        if isinstance(effect, SendLastAddConfirmed):
            request = WriteLastAddConfirmedRequest(0, self.ledger_id, self.key, self.term, effect.proof)
            response = bookie.handle(request)
            return lambda: self.machine.add_fenced(response.fence_term) if response.status is Status.FENCED else None
        return self._added(effect, bookie.handle(self.add_request(effect)))

    def _added(self, effect: SendAdd, response: Response) -> Tell:
        if response.status is Status.OK:
            return lambda: self.machine.add_confirmed(effect.index, effect.bookie_id, effect.batch.first_entry_id)
        if response.status is Status.FENCED:
            return lambda: self.machine.add_fenced(response.fence_term)
        if response.status is Status.CONFLICT:
            return lambda: self.machine.add_conflicting(effect.index, effect.bookie_id, effect.batch)
        return lambda: self._silent(effect)

    def _silent(self, effect: Any) -> None:
        if isinstance(effect, SendAdd):
            self.machine.bookie_failed(effect.index, effect.bookie_id, effect.batch)


class Recovery(Actor):
    """A client that recovers the ledger."""

    def __init__(self, cluster: Cluster, machine: LedgerRecovery, ledger_id: int) -> None:
        super().__init__(cluster, ledger_id)
        self.machine: LedgerRecovery = machine

    @property
    def term(self) -> int:  # type: ignore[override]
        return self.machine.term

    def start(self) -> None:
        self.machine.start()
        self.collect()

    def claim(self) -> None:
        """Starts, and makes the ledger IN_RECOVERY."""
        self.start()
        self.deliver(WriteMetadata)

    def recover(self) -> LedgerMetadata:
        """Runs to the end, and returns the closed ledger's metadata. Raises what it failed with."""
        self.start()
        self.run()
        if self.finished is None:
            raise self.give_up()
        return self.finished

    def writer(self) -> Writer:
        """Takes the ledger over, and returns the writer of the new term."""
        self.recover()
        return self.writer_of_term()

    def writer_of_term(self) -> Writer:
        """The writer of the term that this takeover has opened."""
        machine = self.machine
        writing = LedgerWriting(
            machine.metadata, machine.version, self.cluster.digest(self.ledger_id), "w", missing=machine.missing
        )
        return Writer(self.cluster, writing, self.ledger_id)

    def give_up(self) -> ReplogError:
        """Its deadline passes, unless it has failed already: what it fails with."""
        self.machine.give_up(30)
        self.collect()
        assert self.error is not None
        return self.error

    def _handle(self, effect: Any) -> Tell:
        return self.machine.silent_awaited if isinstance(effect, AwaitSilentBookies) else super()._handle(effect)

    def _request(self, effect: Any, bookie: Bookie) -> Tell:
        if isinstance(effect, SendAdd):
            response = bookie.handle(self.add_request(effect))
        elif isinstance(effect, SendFence):
            response = bookie.handle(FenceRequest(0, self.ledger_id, self.key, self.term))
        else:
            request = RecoveryReadRequest(0, self.ledger_id, self.key, self.term, effect.entry_id, effect.stamp)
            response = bookie.handle(request)
        if response.status is Status.FENCED:
            return lambda: self.machine.refused(response.fence_term)
        return lambda: self._answered(effect, response)

    def _answered(self, effect: Any, response: Response) -> None:
        if isinstance(effect, SendFence):
            try:
                confirmed = self.machine.proven(response.proof)
            except RemoteProtocolError:
                self._silent(effect)  # it has not answered (R11)
            else:
                self.machine.fence_confirmed(effect.index, confirmed)
        elif isinstance(effect, SendAdd) and response.status is Status.OK:
            self.machine.add_confirmed(effect.index, effect.bookie_id, effect.batch.first_entry_id)
        elif isinstance(effect, SendAdd):
            self._silent(effect)
        elif response.status in DENIALS:
            self.machine.read_absent(effect.index, effect.entry_id, DENIALS[response.status])
        elif response.status is not Status.OK:
            self.machine.read_unknown(effect.index, effect.entry_id)
        else:
            self.machine.read_found(effect.index, effect.entry_id, response.batches[0])

    def _silent(self, effect: Any) -> None:
        if isinstance(effect, SendFence | SendRecoveryRead):
            self.machine.bookie_unreachable(effect.index)
        else:
            self.machine.bookie_failed(effect.index, effect.bookie_id, effect.batch.first_entry_id)


def fenced(cluster: Cluster, *bookie_ids: str, nonce: str = "w2") -> Recovery:
    """A recovery that has claimed the ledger and fenced these bookies."""
    recovery = cluster.recovery(nonce=nonce)
    recovery.start()
    if recovery.find(WriteMetadata):
        recovery.deliver(WriteMetadata)
    for name in bookie_ids:
        recovery.deliver(SendFence, name)
    return recovery


class Reader(Actor):
    """A client that only reads."""

    def __init__(self, cluster: Cluster, machine: LedgerReading, ledger_id: int) -> None:
        super().__init__(cluster, ledger_id)
        self.machine: LedgerReading = machine

    def read_on(self) -> None:
        self.machine.read_on()
        self.collect()

    def poll(self) -> None:
        """Asks how far the ledger is confirmed."""
        self.machine.poll_last_add_confirmed()
        self.run()

    def read_all(self) -> list[bytes]:
        """Reads up to what is known to be confirmed. Raises what it failed with."""
        self.read_on()
        while self.waiting:
            self.run()
            self.read_on()
        if self.error is not None:
            raise self.error
        return self.payloads

    def refresh(self) -> None:
        """Rereads the metadata."""
        self.machine.metadata_read(self.cluster.metadata(self.ledger_id))
        self.collect()

    def _metadata_read(self, metadata: LedgerMetadata, version: int) -> None:
        self.machine.metadata_read(metadata)

    def _request(self, effect: Any, bookie: Bookie) -> Tell:
        if isinstance(effect, SendReadLastAddConfirmed):
            request = ReadLastAddConfirmedRequest(0, self.ledger_id, self.key, effect.after, 0)
            answer = bookie.read_last_add_confirmed(request)
            return lambda: self._heard(answer)
        read = cast(SendRead, effect)
        response = bookie.read(ReadRequest(0, self.ledger_id, self.key, read.entry_id, read.stamp, 1 << 20))
        if response.status is Status.OK:
            return lambda: self.machine.read_found(read.index, read.entry_id, response.batches)
        if response.status is Status.NO_ENTRY:
            return lambda: self.machine.read_absent(read.index, read.entry_id)
        return lambda: self._silent(effect)

    def _heard(self, answer: Response) -> None:
        with contextlib.suppress(RemoteProtocolError):  # then it has not answered (R11)
            self.machine.last_add_confirmed_answered(self.machine.proven(answer.proof), answer.batches)

    def _silent(self, effect: Any) -> None:
        if isinstance(effect, SendRead):
            self.machine.read_unknown(effect.index, effect.entry_id)


def _entry_id(effect: Any) -> int:
    return cast(int, effect.batch.first_entry_id if isinstance(effect, SendAdd) else effect.entry_id)


def _trimmed(delivered: Delivered) -> list[bytes]:
    """The payloads of the ids delivered, in their order."""
    held = {
        entry_id: payload
        for batch in delivered.batches
        for entry_id, payload in zip(batch.entry_ids, batch.payloads(), strict=True)
    }
    return [held[entry_id] for entry_id in range(delivered.first_entry_id, delivered.last_entry_id + 1)]
