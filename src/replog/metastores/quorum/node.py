"""A member that runs: it drives the machine, writes what must be durable, applies what is committed, and answers clients.

Everything but the writes to the disk happens in the trio thread. All commands that come while entries are under way become the
next entry. Messages go to a `Network`, which may lose them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import attrs
import lmdb
import trio

from replog.errors import MetastoreUnavailableError, RemoteProtocolError
from replog.metastores.quorum.callers import BusyError, Callers, NotLeaderError, UnknownOutcomeError
from replog.metastores.quorum.copies import StateCopy
from replog.metastores.quorum.leases import LeaseClock
from replog.metastores.quorum.overlay import OverlayRows
from replog.metastores.quorum.store import MemberStore
from replog.protocol.consensus.commands import (
    TERM,
    TOKEN_BYTES,
    Command,
    Outcome,
    Status,
    What,
    encode_commands,
)
from replog.protocol.consensus.effects import Committed, CopyTaken, CopyWanted, Deposed, Effect, ReadsConfirmed
from replog.protocol.consensus.log import Base, Kind, LogEntry
from replog.protocol.consensus.member import Member
from replog.protocol.consensus.messages import Copy, Message
from replog.protocol.consensus.outbox import Write
from replog.protocol.consensus.registers import Registers
from replog.runtime.entropy import current_entropy
from replog.runtime.threads import run_in_thread

T = TypeVar("T")

_ENTRIES_UNDER_WAY_MAX = 2  # of commands: what comes meanwhile becomes the next entry
_IDLE_FLUSH_S = 1.0  # after which what was applied is written, though no entry is
_HOLD_S = 2.0  # a client that waits is answered then, changed or not: sooner than a silent connection is given up
_WRITTEN_S_MIN = 1.0  # in which a copy is to be written, at least
_WRITTEN_TIMES = 4  # as long as sending it took
_GROWTH_BYTES_MAX = 1024  # of a value, on a full disk: a record that says what is trimmed may be a little larger
_LOG_ENTRIES_MAX, _LOG_BYTES_MAX = 10_000, 16 << 20  # kept for members that lag; half of it is dropped at a time

# What a member stops over, alone (B10): its disk, what it does not read, and what can't be, such as a term that has no room.
FAILURES = (OSError, lmdb.Error, RemoteProtocolError, AssertionError, struct.error)


class Network(Protocol):
    """Carries messages to other members. It may lose them, and must not wait."""

    def send(self, name: str, message: Message) -> None:
        """Sends a message to the member of this name."""

    async def send_copy(self, name: str, message: Copy, state: StateCopy) -> bool:
        """Sends the state, and the message behind it. Returns whether they may have arrived."""


@attrs.frozen
class Timing:
    """How long silence may last."""

    heartbeat_s: float = 0.3
    election_s: float = 1.5  # at least, and twice as long at most


class Node:
    """One member. Use `run` in a nursery; `change`, `read` and `wait` are for clients, `receive` for the network."""

    def __init__(self, name: str, store: MemberStore, network: Network, timing: Timing) -> None:
        stored = store.load()
        self.name = name
        self.member = Member(name, stored.term, stored.voted_for, stored.log, commit=stored.applied)
        self.applied = stored.applied
        self.failure: Exception | None = None  # why it has stopped
        self._store = store
        self._network = network
        self._timing = timing
        self._rows = OverlayRows(store)
        self._state = Registers(self._rows)
        self._callers = Callers()
        self.leases = LeaseClock(timing.heartbeat_s)
        self._copy: StateCopy | None = None  # that was received, and is to be written
        self._is_copying: set[str] = set()
        self._wanted = trio.Event()  # something is to be written
        self._is_proceeding = False

    # -- clients ----------------------------------------------------------------------------------------------------

    async def change(self, command: Command) -> tuple[Outcome, int]:
        """Has a command committed. Returns its outcome, and the index of its entry, which the client knows from then on (Q13).
        Raises `NotLeaderError`, `BusyError`, `UnknownOutcomeError`. If cancelled, it may be appended all the same."""
        if self.member.leading is None or self.failure is not None:
            await trio.lowlevel.checkpoint()
            raise NotLeaderError(self.member.leader)
        try:
            if self._store.is_short and _fills(command, self._look(lambda state: state.get(command.key))):
                raise BusyError("its disk is full: it takes deletions, and values that are no larger; make room there")
            waiting = self._callers.gather(command)
        except BusyError:
            await trio.lowlevel.checkpoint()
            raise
        self._proceed()
        await waiting.ended.wait()
        if waiting.error is not None:
            raise waiting.error
        assert waiting.outcome is not None, "a command that was committed has an outcome"
        return waiting.outcome, waiting.index

    async def read(self, look: Callable[[Registers], T]) -> tuple[T, int]:
        """Looks at a state that has every change that was answered before this was called (Q10). Returns what `look` returns, and
        the index that the state has. Raises `NotLeaderError`."""
        probe = None if self.failure is not None else self.member.begin_read()
        if probe is None:
            await trio.lowlevel.checkpoint()
            raise NotLeaderError(self.member.leader)
        asked = self._callers.ask(probe)
        self._proceed()
        if not await self._callers.confirmed(asked):
            raise NotLeaderError(self.member.leader)
        return self._look(look), self.applied

    def _look(self, look: Callable[[Registers], T]) -> T:
        try:
            return look(self._state)
        except (OSError, lmdb.Error) as error:
            self._stop(error)
            raise NotLeaderError(None) from error

    async def wait(self, place: str, is_changed: Callable[[Registers], bool]) -> bool:
        """Waits until `is_changed` may say so, or for some seconds: then returns False. `place` is a key, or a key and a slash
        for what is below it. What it looks at may be a moment old: whoever waits reads afterwards. Raises `NotLeaderError`."""
        await trio.lowlevel.checkpoint()
        if self.member.is_ready and self.failure is None:
            if self._look(is_changed):
                return True
            with trio.move_on_after(_HOLD_S) as hold:
                await self._callers.waits.changed(place)
            if self.member.is_ready and self.failure is None:
                return not hold.cancelled_caught
        raise NotLeaderError(self.member.leader)

    def do(self, event: Callable[[Member], object]) -> None:
        """Tells the machine of an event, and does what follows from it."""
        if self.failure is None:
            event(self.member)
            self._proceed()

    # -- the network ------------------------------------------------------------------------------------------------

    def receive(self, sender: str, message: Message, state: StateCopy | None = None) -> None:
        """A message of another member has arrived; a `Copy` with the state that it is about."""
        if self.failure is not None or self._copy is not None:
            return  # as if it was lost: a copy is written first
        try:
            self.member.receive(sender, message)
        except FAILURES as error:
            # What was committed would be cut (Q5), or a term has two leaders (Q1): this member has nothing to say any more.
            self._stop(error)
            return
        if any(isinstance(each, CopyTaken) for each in self.member.effects):
            assert state is not None, "a copy comes with its state"
            self._copy = state
        self._proceed()

    # -- running ----------------------------------------------------------------------------------------------------

    async def run(self, look: Callable[[], None] = lambda: None) -> None:
        """Runs until cancelled, or until the disk fails: then raises why, and this member is silent. Calls `look` at each
        heartbeat."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._elections)
                nursery.start_soon(self._heartbeats, look)
                nursery.start_soon(self._write)
        except BaseException as error:
            self.failure = self.failure or (
                error if isinstance(error, Exception) else MetastoreUnavailableError("the member was stopped")
            )
            raise
        finally:
            self._end_all()

    async def _elections(self) -> None:
        while True:
            # Anew each time: so two members seldom stand at the same moment.
            await trio.sleep(self._timing.election_s * (1 + current_entropy().random.random()))
            self.member.election_timeout()
            self._proceed()

    async def _heartbeats(self, look: Callable[[], None]) -> None:
        while True:
            look()
            await trio.sleep(self._timing.heartbeat_s)
            self.member.heartbeat_due()
            self._expire()
            self._proceed()

    def _expire(self) -> None:
        """Has the keys deleted whose holders were not heard of for their leases."""
        member, now_s = self.member, trio.current_time()
        if not member.is_ready:
            return
        if self.leases.term != member.term:
            self.leases.begin(member.term, self._state.announcements(), now_s)
        for key, version in self.leases.tick(now_s):
            token = current_entropy().random.randbytes(TOKEN_BYTES)
            expire = Command(token, self.applied, What.EXPIRE, key, TERM.pack(member.term), version)
            try:
                self._callers.gather(expire)
            except BusyError:
                self.leases.renew(key, version, 0)  # once more at the next tick

    async def _write(self) -> None:
        """Writes what has changed, one moment of the member after the other."""
        member = self.member
        while True:
            if not member.outbox.is_dirty:
                with trio.move_on_after(_IDLE_FLUSH_S):
                    await self._wanted.wait()
            if self.failure is not None:
                raise self.failure
            if not member.outbox.is_dirty and self._rows.is_empty:
                continue
            self._wanted = trio.Event()
            write = member.begin_write()
            assert write is None or isinstance(write, Write)
            copy, applied = self._copy, self.applied
            if copy is None:
                await run_in_thread(partial(self._store.write, write, self._rows.take(), applied))
                self._rows.written()
            else:
                await run_in_thread(partial(self._store.replace, write, copy, applied))
                # Outcomes are counted again: the copy brought others. Nothing is applied before that.
                self._copy, self._state = None, Registers(self._rows)
            del copy  # all metadata: not needed while the next write is waited for
            if write is not None:
                member.written(write.number)
            self._drop(applied)
            self._proceed()

    def _drop(self, applied: int) -> None:
        """Drops old entries, of which the disk has the effects."""
        log = self.member.log
        if log.last - log.base.index > _LOG_ENTRIES_MAX or log.size_bytes > _LOG_BYTES_MAX:
            behind = log.index_before(_LOG_ENTRIES_MAX // 2, _LOG_BYTES_MAX // 2)
            self.member.drop(min(applied, behind))

    # -- what the machine says ----------------------------------------------------------------------------------------

    def _proceed(self) -> None:
        """Performs effects, appends what has gathered, and sends, until there is nothing left to do. Within one process, a
        message may be answered before sending it returns: then the call that is inside goes on with that."""
        if self._is_proceeding or self.failure is not None:
            return
        self._is_proceeding = True
        member = self.member
        try:
            while True:
                for effect in member.take_effects():
                    self._perform(effect)
                self._append()
                for name, message in member.outbox.take_sent():
                    self._network.send(name, message)
                if not member.effects and not member.outbox.sent:
                    break
        except FAILURES as error:
            # Its disk fails, an entry that it does not know (Q20), another state than its leader's (Q19): `run` ends with that.
            # Whoever has called is another task, maybe of the listener: it goes on (B10).
            self._stop(error)
        finally:
            self._is_proceeding = False
        if member.outbox.is_dirty:
            self._wanted.set()

    def _append(self) -> None:
        member, callers = self.member, self._callers
        while callers.have_gathered and member.leading is not None and len(callers.under_way) < _ENTRIES_UNDER_WAY_MAX:
            waiting = callers.next_entry()
            commands = [each.command for each in waiting]
            body = encode_commands(current_entropy().time_ms(), commands, self._state.as_of)
            callers.under_way[member.append(LogEntry(member.term, Kind.COMMANDS, body))] = waiting
        if member.leading is None:
            callers.refuse_gathered(NotLeaderError(member.leader))

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Committed():
                for index, entry in enumerate(effect.entries, effect.first):
                    self._apply(index, entry)
            case ReadsConfirmed():
                self._callers.confirm(effect.probe)
            case Deposed():
                self._callers.end_all(UnknownOutcomeError())
            case CopyWanted():
                if effect.name not in self._is_copying:
                    self._is_copying.add(effect.name)
                    self._nursery.start_soon(self._send_copy, effect.name)
            case CopyTaken():
                self._rows.replace()
                self.applied = effect.base.index

    def _apply(self, index: int, entry: LogEntry) -> None:
        assert index == self.applied + 1, "entries are applied in their order, each once"
        outcomes: Sequence[tuple[Command, Outcome]] = ()
        if entry.kind is Kind.COMMANDS:
            outcomes = self._state.apply(index, entry.body, entry.term)
        self.applied = index
        if self.member.leading is not None:
            for command, outcome in outcomes:
                if outcome.status is Status.DONE:
                    self._callers.waits.wake(command.key, is_listed_anew=command.what is not What.PUT)
                    self.leases.changed(self._state, command.key)
        self._callers.committed(index, outcomes)

    def _stop(self, error: Exception) -> None:
        self.failure = error
        self._end_all()
        self._wanted.set()

    def _end_all(self) -> None:
        """This member answers nobody any more."""
        self._callers.end_all(UnknownOutcomeError())
        self._callers.refuse_gathered(NotLeaderError(None))

    async def _send_copy(self, name: str) -> None:
        """Sends the state as it is on this disk: it has committed entries only (Q12)."""
        began_at_s = trio.current_time()
        try:
            member, term = self.member, self.member.term
            applied, state = await run_in_thread(self._store.state)
            entry_term = member.log.term_at(applied)
            leading = member.leading
            if leading is None or member.term != term or entry_term is None:
                return
            base = Base(applied, entry_term, member.log.members_at(applied))
            may_have_arrived = await self._network.send_copy(name, Copy(term, base, leading.probe), state)
            del state  # all metadata: not needed while it is waited
            if may_have_arrived:
                sent_s = trio.current_time() - began_at_s
                with trio.move_on_after(max(_WRITTEN_S_MIN, _WRITTEN_TIMES * sent_s)):
                    await self._until_written(name, base)
        finally:
            self._is_copying.discard(name)

    async def _until_written(self, name: str, base: Base) -> None:
        """Waits while a follower writes its copy, deaf to all: another one would only be in its way."""
        while True:
            leading = self.member.leading
            follower = None if leading is None else leading.followers.get(name)
            if follower is None or follower.matched >= base.index:
                return
            await trio.sleep(self._timing.heartbeat_s)


def _fills(command: Command, found: tuple[int, bytes] | None) -> bool:
    """True for a command that takes more of a full disk than it can be spared. Who lives must still be known."""
    if command.what is What.PUT:
        return found is not None and len(command.value) > len(found[1]) + _GROWTH_BYTES_MAX
    return command.what is What.CREATE
