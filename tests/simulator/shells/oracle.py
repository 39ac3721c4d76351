"""Invariants under all faults, checked while a run goes on and when it has ended.

- B1: what a bookie acknowledged is durable there; B6: no ledger that exists is dropped.
- W2: what is confirmed is durable on an ack quorum; C9: of the bookies that the ledger's record names for it at that moment.
- W2, L2: what was confirmed is in the end where it was confirmed, once, with all that its writer pushed before it.
- L5: nothing that is appended after another leader serves, or after the ledger was recovered, is confirmed.
- L6, D3: a reader sees the records in their order, each once, without gap, and everybody sees the same.
- L1, L3: no log names a ledger that does not exist; who trims leaves no ledger behind; nor does who leads, unless it
  was cancelled, killed, or failed.
- Each task's records stand in the order of its calls. Every error is a named one.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import trio

from replog.errors import EntryNotFoundError, LedgerNotFoundError, ReplogError
from replog.protocol.fragments import WRITER_TERM
from replog.protocol.messages import (
    AddRequest,
    CopyRequest,
    FenceRequest,
    LedgerRequest,
    RecoveryReadRequest,
    Request,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.model import LedgerMetadata, Position
from replog.protocol.proofs import claimed, read_claim
from replog.testing.simulating.disks import SimulatedDisk
from tests.simulator.shells.world import JudgedWorld

_DECIDED = (Status.OK, Status.NO_ENTRY, Status.NO_ENTRY_IN_DOUBT, Status.NO_ENTRY_AFTER_LOSS)


class Leader:
    """The answers to one leader of the log. `first_segment` is where it began to serve."""

    def __init__(self, oracle: LogOracle, first_segment: int) -> None:
        self.first_segment = first_segment
        self._oracle = oracle
        self._pushed: dict[Position, bytes] = {}  # not known to be confirmed

    @property
    def is_deposed(self) -> bool:
        """Whether another leader has served since."""
        return self._oracle.highest_served > self.first_segment

    def pushed(self, position: Position, data: bytes) -> None:
        """The record is in flight."""
        self._pushed[position] = data

    def confirmed(self, position: Position, data: bytes, *, called_when_deposed: bool) -> list[Position]:
        """It was told that the record is confirmed there, and with it all that it had pushed before: what is returned."""
        if called_when_deposed:
            self._oracle.world.violated("L5", f"{position} was appended by a deposed leader, and confirmed")
        self._pushed[position] = data
        confirmed = sorted(each for each in self._pushed if each <= position)
        for each in confirmed:
            self._oracle.confirm(each, self._pushed.pop(each))
        return confirmed


class LogOracle:
    """The observations of one log."""

    def __init__(self, world: JudgedWorld) -> None:
        self.world = world
        self.highest_served = 0
        self._served: dict[int, None] = {}
        self.confirmed: dict[Position, bytes] = {}
        self.seen: dict[Position, bytes] = {}
        self.chains: list[list[Position]] = []  # what one reader saw, in its order

    def serving(self, segment: int) -> Leader:
        """A leader has taken over, and begins with this segment. It may learn so late, when another one is after it already."""
        if segment in self._served:
            self.world.violated("L1", f"two leaders serve segment {segment}")
        self._served[segment] = None
        self.highest_served = max(segment, self.highest_served)
        return Leader(self, segment)

    def confirm(self, position: Position, data: bytes) -> None:
        """A record is confirmed there."""
        if self.confirmed.setdefault(position, data) != data:
            self.world.violated("W2", f"{position} was confirmed as {self.confirmed[position]!r} and as {data!r}")

    def chain(self) -> list[Position]:
        """For a new reader, or one that lost its place."""
        self.chains.append([])
        return self.chains[-1]

    def read(self, chain: list[Position], position: Position, data: bytes) -> None:
        """A reader was given this record."""
        if self.seen.setdefault(position, data) != data:
            self.world.violated("D3", f"{position} was read as {self.seen[position]!r} and as {data!r}")
        if chain and position <= chain[-1]:
            self.world.violated("L6", f"{position} was read after {chain[-1]}")
        chain.append(position)

    def reading_failed(self, error: BaseException) -> None:
        """The errors that a reader of a log must never get."""
        if isinstance(error, LedgerNotFoundError):
            self.world.violated("L3", f"the log names a ledger that does not exist: {error}")
        elif type(error) is EntryNotFoundError:
            self.world.violated("R4", f"an entry that may be read is not there: {error}")

    def judge(self, history: Sequence[tuple[Position, bytes]]) -> None:
        """All that there ever was in the log, against what was seen and confirmed."""
        by_position = dict(history)
        for what, known in (("confirmed", self.confirmed), ("read", self.seen)):
            for position, data in known.items():
                if by_position.get(position) != data:
                    self.world.violated(
                        "W2", f"{position} was {what} as {data!r}, and is {by_position.get(position)!r}"
                    )
        for data, count in Counter(data for _, data in history).items():
            if count > 1:
                self.world.violated("W2", f"{data!r} is in the log {count} times")
        self._judge_order(history)
        places = {position: place for place, (position, _) in enumerate(history)}
        for chain in self.chains:
            for one, other in itertools.pairwise(chain):
                if places.get(other, -1) != places.get(one, -1) + 1:
                    self.world.violated("L6", f"a reader went from {one} to {other}: something stands between them")

    def _judge_order(self, history: Sequence[tuple[Position, bytes]]) -> None:
        last: dict[bytes, int] = {}
        for position, data in history:
            task, _, number = data.partition(b"#")
            if int(number) <= last.get(task, -1):
                self.world.violated("W2", f"{data!r} at {position} stands after number {last[task]} of its task")
            last[task] = int(number)


class LedgerOracle:
    """The observations of one plain ledger."""

    def __init__(self, world: JudgedWorld, ledger_id: int) -> None:
        self.world = world
        self.ledger_id = ledger_id
        self.pushed: dict[int, bytes] = {}
        self.confirmed: dict[int, None] = {}
        self.read: dict[int, bytes] = {}
        self.last_entry_id: int | None = None  # once somebody was told that it is closed

    def confirm(self, entry_id: int, *, called_when_closed: bool) -> None:
        """The writer was told that this entry is confirmed, and with it all before it."""
        if called_when_closed:
            self.world.violated("L5", f"{self._name(entry_id)} was appended after the ledger's recovery, and confirmed")
        self.confirmed.update(dict.fromkeys(each for each in self.pushed if each <= entry_id))

    def closed(self, last_entry_id: int) -> None:
        """Somebody was told that the ledger ends here."""
        if self.last_entry_id not in (None, last_entry_id):
            self.world.violated(
                "R6", f"ledger {self.ledger_id} was closed at {self.last_entry_id} and at {last_entry_id}"
            )
        self.last_entry_id = last_entry_id

    def saw(self, entry_id: int, data: bytes) -> None:
        """A reader was given this entry."""
        if self.read.setdefault(entry_id, data) != data:
            self.world.violated("D3", f"{self._name(entry_id)} was read as {self.read[entry_id]!r} and as {data!r}")

    def judge(self, entries: Sequence[bytes]) -> None:
        """Judges the content of the closed ledger."""
        final = dict(enumerate(entries))
        if self.last_entry_id is not None and len(entries) != self.last_entry_id + 1:
            self.world.violated(
                "R7", f"ledger {self.ledger_id} has {len(entries)} entries, ends at {self.last_entry_id}"
            )
        for entry_id, data in final.items():
            if self.pushed.get(entry_id) != data:
                self.world.violated("W3", f"{self._name(entry_id)} is {data!r}, not {self.pushed.get(entry_id)!r}")
        for entry_id in self.confirmed:
            if entry_id not in final:
                self.world.violated("W2", f"{self._name(entry_id)} was confirmed, and is lost")
        for entry_id in self.read:
            if entry_id not in final:
                self.world.violated("D1", f"{self._name(entry_id)} was read, and is not in the ledger")

    def _name(self, entry_id: int) -> str:
        return f"entry {entry_id} of ledger {self.ledger_id}"


def check_answer(world: JudgedWorld, disk: SimulatedDisk, request: Request, response: Response) -> None:
    """A bookie gives this answer: what it promises must be durable there (B1, R3), and known (B8)."""
    if isinstance(request, LedgerRequest):
        _check_doubt(world, disk, request, response)
    if response.status is Status.OK and isinstance(request, AddRequest) and not disk.holds(request.batch):
        world.violated("B1", f"{disk.name} acknowledged {request.batch!r}, which is not durable")
    if response.status in _DECIDED and isinstance(request, FenceRequest | RecoveryReadRequest):
        marks = disk.marks(request.ledger_id)
        if marks is None or marks.fence_term < request.term:
            world.violated("R3", f"{disk.name} answered a fence of ledger {request.ledger_id} that is not durable")


def _check_doubt(world: JudgedWorld, disk: SimulatedDisk, request: LedgerRequest, response: Response) -> None:
    """A bookie that is in doubt takes no plain adds, and only denies weakly (B8, R10)."""
    what = f"{disk.name}, in doubt below {disk.noticed.doubted_below}, answered {response.status.name}: {request!r}"
    if disk.doubt.is_unbounded:
        world.violated("B8", f"{what}; it has not found out yet which ledgers existed when it lost something")
    if isinstance(request, AddRequest):
        is_certain = request.ledger_id >= disk.noticed.fences_lost_below or request.ledger_id in disk.doubt.fenced_again
        if response.status is Status.OK and not request.recovery and not is_certain:
            world.violated("B8", f"{what}; the ledger's fence may have been lost")
        if response.status is Status.OK and request.term < (lost := disk.noticed.lost_fences.get(request.ledger_id, 0)):
            world.violated("B8", f"{what}; it was fenced with term {lost}, and forgot it")
        if response.status is Status.IN_DOUBT:
            world.count("add refused in doubt")
    elif request.ledger_id >= disk.noticed.doubted_below:
        return
    elif response.status is Status.NO_ENTRY:
        world.violated("B8", f"{what}; the entry may have been lost")
    elif response.status in (Status.NO_ENTRY_IN_DOUBT, Status.NO_ENTRY_AFTER_LOSS):
        world.count(f"weak denial {response.status.name}")


class FrozenConfirmed:
    """The confirmed entry that each recovery names with its write-backs: one value, and no more than it was told (R5)."""

    def __init__(self, world: JudgedWorld, fragment_start: Callable[[int], int]) -> None:
        self._world = world
        self._fragment_start = fragment_start  # of a ledger's last fragment
        self._told: dict[tuple[str, int], int] = {}
        self._said: dict[tuple[str, int], int] = {}

    def answered(self, client: str, request: Request, response: Response) -> None:
        """A bookie tells a client, which fences a ledger, how far it knows it to be confirmed."""
        if isinstance(request, FenceRequest) and response.status is Status.OK:
            key = client, request.ledger_id
            self._told[key] = max(self._told.get(key, -1), claimed(response.proof))

    def sent(self, client: str, request: Request) -> None:
        """A client begins a recovery, or writes a batch back."""
        if isinstance(request, FenceRequest):
            self._said.pop((client, request.ledger_id), None)
        if not isinstance(request, AddRequest) or isinstance(request, CopyRequest) or not request.recovery:
            return
        key, confirmed = (client, request.ledger_id), claimed(request.proof)
        if self._said.setdefault(key, confirmed) != confirmed:
            self._world.violated("R5", f"{client} writes back with {confirmed} confirmed, and {self._said[key]} before")
        if confirmed > max(self._told.get(key, -1), self._fragment_start(request.ledger_id) - 1):
            self._world.violated("R5", f"{client} writes back with {confirmed} confirmed, which nobody told it")
        self._world.count("batch written back")


class Copies:
    """The content of all disks. `segments` are the ledgers of the log, as far as they are known; `acks` the ack quorums
    of ledgers that have another one than most; `stored` gives a ledger's record as it is now, None if it was deleted."""

    def __init__(
        self,
        world: JudgedWorld,
        disks: Sequence[SimulatedDisk],
        acks: int,
        stored: Callable[[int], LedgerMetadata | None],
    ) -> None:
        self.segments: dict[int, int] = {}
        self.acks: dict[int, int] = {}
        self._acks = acks
        self._world = world
        self._disks = disks
        self._stored = stored

    def check_position(self, position: Position) -> None:
        """A record of the log was confirmed."""
        if position.segment in self.segments:
            self.check(self.segments[position.segment], position.entry)

    def check_published(self, request: Request) -> None:
        """A last add confirmed that a writer publishes must be true (W5)."""
        if isinstance(request, WriteLastAddConfirmedRequest) and request.proof:
            # What a takeover kept has the stamp of an earlier writer.
            self.check(request.ledger_id, claimed(request.proof), read_claim(request.proof).stamp)

    def check(self, ledger_id: int, entry_id: int, last_stamp: int = WRITER_TERM) -> None:
        """An entry of this stamp or an earlier one was confirmed: an ack quorum of bookies must have it, unless its ledger was
        deleted since (W2)."""
        record = self._stored(ledger_id)
        if record is None or any(disk.has_dropped(ledger_id) for disk in self._disks):
            return
        needed, what = self.acks.get(ledger_id, self._acks), f"entry {entry_id} of ledger {ledger_id} is confirmed"
        stamps = range(WRITER_TERM, last_stamp + 1)
        copies = max(sum(disk.has_entry(ledger_id, entry_id, stamp) for disk in self._disks) for stamp in stamps)
        if copies < needed:
            self._world.violated("W2", f"{what}, and has {copies} copies")
        elif record.trim_to <= entry_id and record.is_listed(entry_id):
            fragment = record.fragment_of(entry_id)
            named = {fragment.ensemble[index] for index in record.quorum.write_set(entry_id)}
            disks = [disk for disk in self._disks if disk.content.bookie_id in named]
            copies = sum(disk.has_entry(ledger_id, entry_id, fragment.term) for disk in disks)
            if copies < needed:
                self._world.violated("C9", f"{what}, and has {copies} copies in {fragment}, which its record names")
            self._world.count("confirmed entry on an ack quorum of its record")


def leaves(error: BaseException) -> list[BaseException]:
    """The errors in a group."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves(each)]
    return [error]


NAMED = (ReplogError, trio.ClosedResourceError)
