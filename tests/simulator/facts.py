"""The true events of a run, as far as an oracle knows them: its observations, and the messages of its parts."""

from __future__ import annotations

from collections.abc import Mapping

from replog.protocol.model import LedgerMetadata, LedgerState, LogMetadata, LogPage, Segment
from tests.simulator.disks import LedgerOnDisk
from tests.simulator.forgetting import Forgotten
from tests.simulator.sendings import Sendings
from tests.simulator.world import World


class Violation(Exception):
    """An invariant is broken: `rule` says which."""

    def __init__(self, rule: str, problem: str) -> None:
        super().__init__(f"{rule}: {problem}")
        self.rule = rule


class LedgerTruth:
    """The true state of one ledger."""

    __slots__ = (
        "barriers",
        "bytes_of",
        "confirmed",
        "confirmed_by",
        "confirmed_of",
        "deleted",
        "ledger_id",
        "lists",
        "owner",
        "read_through",
        "record",
        "superseded_from",
    )

    def __init__(self, record: LedgerMetadata) -> None:
        self.ledger_id = record.ledger_id
        self.record = record
        self.owner = ""
        self.lists: dict[int, list[bytes]] = {1: []}  # by stamp: the ledger as the writer of that term sees it
        self.confirmed_of: dict[int, int] = {}  # by stamp: what was confirmed to that writer
        self.confirmed = -1  # to the writer of the open term, and what its takeover kept
        self.read_through = -1
        self.deleted = False
        self.superseded_from: int | None = None
        self.bytes_of: dict[tuple[int, int], bytes] = {}  # by stamp and first entry id
        self.barriers: list[tuple[int, int]] = []  # by entry id: the highest position confirmed when it was submitted

    @property
    def submitted(self) -> list[bytes]:
        """The ledger as the writer of the open term sees it."""
        return self.lists[self.record.open_term]

    @property
    def last_entry_id(self) -> int | None:
        """Where the ledger ends, if that is decided."""
        return self.record.last_entry_id if self.record.state is LedgerState.CLOSED else None


class Facts:
    """The ledgers, the log if there is one, and the bookies' disks."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.disks: Mapping[str, dict[int, LedgerOnDisk]] = {}  # by bookie
        self.ledgers: dict[int, LedgerTruth] = {}
        self.forgotten = Forgotten(world)
        self.sendings = Sendings()
        self.log: LogMetadata | None = None
        self.pages: dict[int, LogPage] = {}  # of the log
        self.list: tuple[Segment, ...] = ()  # all that the log has, in pages and in its head
        self.segments: dict[int, int] = {}  # of all times: segment number by ledger id
        self.highest_position = (-1, -1)
        self.served = (-1, "")  # the highest segment that a takeover served, and its leader
        self.progress: dict[str, tuple[int, int]] = {}  # by reader: the last position handed out

    def fail(self, rule: str, problem: str) -> None:
        """Ends the run, unless the plan overlooks this rule."""
        if rule not in self.world.plan.overlook:
            raise Violation(rule, problem)
