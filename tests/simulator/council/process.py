"""One process of the simulated cluster: the machine, a state in memory, and a disk that takes its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from replog.protocol.consensus.commands import Command, encode_commands
from replog.protocol.consensus.effects import Committed, CopyTaken, CopyWanted, Deposed, Elected, ReadsConfirmed
from replog.protocol.consensus.groups import Membership
from replog.protocol.consensus.log import Base, EntryLog, Kind, LogEntry
from replog.protocol.consensus.member import Member
from replog.protocol.consensus.messages import Copy, Message
from replog.protocol.consensus.outbox import Write
from replog.protocol.consensus.registers import Registers
from tests.simulator.council.rows import OUTCOMES_MAX, MemoryRows

if TYPE_CHECKING:
    from tests.simulator.council.world import World


@attrs.frozen
class Disk:
    """The durable state of one member: its vote, the state as of the base, and the entries behind it."""

    term: int = 0
    voted_for: str | None = None
    base: Base = attrs.field(factory=Base)
    rows: dict[bytes, bytes] = attrs.field(factory=dict)
    entries: tuple[LogEntry, ...] = ()

    def after(self, write: Write, rows: dict[bytes, bytes]) -> Disk:
        """The disk with this write, in one step."""
        base, entries = self.base, self.entries
        if write.first:
            assert write.first > 0, "entries begin at 1"
            kept = entries[: max(0, write.first - 1 - base.index)]
            entries = (*kept, *write.entries)
            if write.base is not None and write.base.index >= base.index + len(kept):
                # A copy was taken over: what stays behind it is in the write.
                return Disk(write.term, write.voted_for, write.base, rows, write.entries)
        if write.base is not None:
            entries, base = entries[write.base.index - base.index :], write.base
            return Disk(write.term, write.voted_for, base, rows, entries)
        return Disk(write.term, write.voted_for, base, self.rows, entries)


def founded(names: tuple[str, ...]) -> Disk:
    """The disk of a member of a cluster that has begun with these."""
    return Disk(1, None, Base(1, 1, Membership((names,))))


class Process:
    """A member that runs. `world` carries its messages and checks what it commits."""

    def __init__(self, name: str, disk: Disk, world: World) -> None:
        self.name = name
        self.disk = disk
        self.member = Member(
            name, disk.term, disk.voted_for, EntryLog(disk.base, disk.entries), entries_max=world.together
        )
        self.rows = MemoryRows(dict(disk.rows))
        self.base_rows = dict(disk.rows)
        self.state = Registers(self.rows, outcomes_max=OUTCOMES_MAX, outcomes_ms=0)
        self.writing: tuple[Write, dict[bytes, bytes]] | None = None
        self.waiting: dict[int, int] = {}  # calls by the index of their entry
        self.reads: list[tuple[int, int, str]] = []  # probe, call, key
        self._world = world
        self._received: dict[int, dict[bytes, bytes]] = {}  # copies

    # -- disks ------------------------------------------------------------------------------------------------------

    def begin_write(self) -> bool:
        write = self.member.begin_write()
        if isinstance(write, Write):
            self.writing = write, self.base_rows
        return self.writing is not None

    def end_write(self) -> None:
        assert self.writing is not None, "a write that was begun ends"
        (write, rows), self.writing = self.writing, None
        self.disk = self.disk.after(write, rows)
        self.member.written(write.number)

    def compact(self) -> None:
        """Drops the entries whose effects are in the state."""
        member = self.member
        if member.commit > member.log.base.index:
            member.drop(member.commit)
            self.base_rows = dict(self.rows.content)

    # -- what the machine says ----------------------------------------------------------------------------------------

    def perform(self) -> None:
        for effect in self.member.take_effects():
            match effect:
                case Committed():
                    for place, entry in enumerate(effect.entries):
                        self._committed(effect.first + place, entry)
                case CopyTaken():
                    rows = self._received[effect.base.index]
                    self.base_rows, self.rows.content = dict(rows), dict(rows)
                    self.state = Registers(self.rows, outcomes_max=OUTCOMES_MAX, outcomes_ms=0)
                case CopyWanted():
                    self._send_copy(effect.name)
                case Elected():
                    self._world.elected(self)
                case Deposed():
                    for call in self.waiting.values():
                        self._world.answered(call, None, 0)
                    self.waiting, self.reads = {}, []
                case ReadsConfirmed():
                    self._confirmed(effect.probe)

    def _committed(self, index: int, entry: LogEntry) -> None:
        self._world.committed(self, index, entry)
        outcomes = self.state.apply(index, entry.body, entry.term) if entry.kind is Kind.COMMANDS else []
        call = self.waiting.pop(index, None)
        if call is not None:
            ((_, outcome),) = outcomes
            self._world.answered(call, outcome, index)

    def _confirmed(self, probe: int) -> None:
        for each in [each for each in self.reads if each[0] <= probe]:
            self.reads.remove(each)
            self._world.read(each[1], self.version(each[2]), self.member.commit)

    def version(self, key: str) -> int:
        found = self.state.get(key)
        return 0 if found is None else found[0]

    def _send_copy(self, name: str) -> None:
        member, log = self.member, self.member.log
        term = log.term_at(member.commit)
        assert term is not None, "what is committed last is in the log"
        base = Base(member.commit, term, log.members_at(member.commit))
        leading = member.leading
        if leading is not None:
            self._world.copied[(name, base.index, base.term)] = dict(self.rows.content)
            member.copy_sent(name, Copy(member.term, base, leading.probe))

    # -- what comes -------------------------------------------------------------------------------------------------

    def receive(self, sender: str, message: Message) -> None:
        if isinstance(message, Copy):
            self._received[message.base.index] = self._world.copied[(self.name, message.base.index, message.base.term)]
        self.member.receive(sender, message)

    def change(self, call: int, command: Command) -> bool:
        """False if this member does not lead: nothing was appended."""
        if self.member.leading is None:
            return False
        entry = LogEntry(self.member.term, Kind.COMMANDS, encode_commands(0, [command]))
        self.waiting[self.member.append(entry)] = call
        return True

    def read(self, call: int, key: str) -> bool:
        """False if this member can't answer."""
        probe = self.member.begin_read()
        if probe is None:
            return False
        self.reads.append((probe, call, key))
        return True
