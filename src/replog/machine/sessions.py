"""The sessions of one member: they number its commands, and say which answers have come.

Its calls and the ids that its callers keep have a session each. The answers behind the lowest open command are kept by all
members: a call is open for `call_timeout_s` at most, and an id for as long as its caller wants.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from itertools import takewhile
from typing import NamedTuple

import trio

from replog.errors import CommandTimeoutError, ConfigError, MachineError, SessionExpiredError
from replog.machine.calling import Caller
from replog.machine.entries import Code, Kind, MachineEntry
from replog.machine.options import MachineTuning

_TOUCHES_PER_TIMEOUT = 4
_FAREWELL_S = 2.0
IDS_MAX = 16_384  # of one member, open at once: the oldest one that is not under way is given up for the next one
_ANSWERED_IDS_KEPT = 100  # the last ones, for callers that were interrupted while they got the answer
_GIVEN_UP_SHARE = 8  # the oldest part of the ids is given up at once when answers fill the session


class CommandId(NamedTuple):
    """Identifies one command of one caller, permanently: printed as "17:42", `CommandId.parse` reads that back.

    A caller that keeps the id may repeat the command after its own restart, by `call_as`: it is applied once."""

    session: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.session}:{self.sequence}"

    @classmethod
    def parse(cls, value: str | CommandId) -> CommandId:
        """Reads "17:42"; returns an id as it is. Raises `ConfigError`."""
        if isinstance(value, cls):
            return value
        match = re.fullmatch(r"(\d{1,18}):(\d{1,18})", value.strip(), re.ASCII) if isinstance(value, str) else None
        if match is None:
            raise ConfigError(f"invalid command id {value!r}: expected a CommandId or text like '17:42'")
        return cls(int(match[1]), int(match[2]))


class Session:
    """The numbers of one member's commands. A session that has ended is followed by another with the next command."""

    def __init__(self, caller: Caller, options: MachineTuning, who: str) -> None:
        self._caller = caller
        self._who = who.encode()
        self._id = 0  # 0: none was opened, or it has ended
        self._next = 1
        self._unanswered: dict[int, None] = {}  # ascending
        self._opening = trio.Lock()
        self._calls_max = options.calls_at_once_max
        self._call_timeout_s = options.call_timeout_s
        self._freed = trio.Event()
        self._timeout_s = options.session_timeout_s
        self._used_s = trio.current_time()

    async def begin(self) -> CommandId:
        """The next id. `ended` must follow. Waits while too many commands are under way. Raises as `Caller.ask`."""
        if not self._is_free:
            # Callers waiting for the one that opens the session would otherwise wait for each other's attempts in turn.
            with trio.move_on_after(self._call_timeout_s):
                await self._until_free()
        if not self._is_free:
            raise CommandTimeoutError(
                f"no session, or room in it, for {self._call_timeout_s} s: no leader answered, or {self._calls_max} commands "
                "are under way; this one was not sent"
            )
        return self._next_id()

    def begin_nowait(self) -> CommandId | None:
        """The non-blocking form of `begin`; None if it would have to wait."""
        return self._next_id() if self._is_free else None

    def _next_id(self) -> CommandId:
        sequence = self._next
        self._next = sequence + 1
        self._unanswered[sequence] = None
        return CommandId(self._id, sequence)

    @property
    def _is_free(self) -> bool:
        return bool(self._id) and len(self._unanswered) < self._calls_max

    async def _until_free(self) -> None:
        while not self._is_free:
            if self._id:
                await self._freed.wait()
                continue
            async with self._opening:
                if not self._id:
                    answer = await self._caller.ask(MachineEntry(Kind.OPEN, body=self._who))
                    self._id, self._next, self._unanswered = int(answer.body), 1, {}

    def floor(self, command_id: CommandId) -> int:
        """The sequence below which all answers have come; 0 for ids of another session."""
        return next(iter(self._unanswered)) if command_id.session == self._id and self._unanswered else 0

    def make_room(self, session: int, floor: int) -> None:
        """Answers fill this session above this floor. Of calls, the lowest is under way, and makes room when it ends."""

    def ended(self, command_id: CommandId) -> None:
        """The command was answered, or will not be repeated."""
        if command_id.session == self._id:
            unanswered = self._unanswered
            was_full = len(unanswered) >= self._calls_max
            unanswered.pop(command_id.sequence, None)
            if was_full:
                self._wake()
            self._used_s = trio.current_time()

    def _wake(self) -> None:
        """Wakes callers waiting for room. They have sent nothing: if their session ended, they go on in the next one."""
        self._freed.set()
        self._freed = trio.Event()

    def expired(self, session: int) -> SessionExpiredError:
        """The leader says that this session does not exist; the error for the caller."""
        if session == self._id:
            self._id = 0
            self._wake()
        return SessionExpiredError(
            f"session {session} has ended, or never began: the command is not applied from now on, and it is not known "
            "whether it was before; a new call gets a new session"
        )

    async def keep_alive(self) -> None:
        """Lets the leader hear of an idle caller."""
        every_s = self._timeout_s / _TOUCHES_PER_TIMEOUT
        while True:
            await trio.sleep(every_s)
            session, floor = self._id, next(iter(self._unanswered), 0)
            if session and trio.current_time() - self._used_s >= every_s:
                try:
                    answer = await self._caller.ask(MachineEntry(Kind.TOUCH, session, floor=floor))
                except MachineError:
                    continue  # no leader for now
                except trio.ClosedResourceError:
                    return  # the member was left meanwhile
                if answer.code == Code.EXPIRED:
                    self.expired(session)
                elif answer.code == Code.FULL:
                    self.make_room(session, floor)  # of answers to other processes, which have our ids

    async def close(self) -> None:
        """Ends the session, if a leader can be reached soon: else it expires. So does one with commands that were not answered:
        their caller may have kept their ids."""
        session, self._id = self._id, 0
        try:
            if session and not self._unanswered:
                with trio.move_on_after(_FAREWELL_S) as scope:
                    scope.shield = True
                    with suppress(MachineError):  # it expires by itself
                        await self._caller.ask(MachineEntry(Kind.EXPIRE, body=f"[{session}]".encode()))
        finally:
            # A caller waiting for room asks one that has exited by then, and hears that.
            self._wake()


class IdSession(Session):
    """The ids that callers keep. An id is open until it was answered, or is given up: when too many are open, or when answers to
    later ids fill the session."""

    def __init__(self, caller: Caller, options: MachineTuning, who: str) -> None:
        super().__init__(caller, options, who)
        self._calls_max = IDS_MAX
        self._under_way: Counter[CommandId] = Counter()
        self._answered: dict[CommandId, None] = {}  # and open, oldest first

    async def begin(self) -> CommandId:
        """The next id. Gives up the oldest one, if too many are open. Raises as `Caller.ask`."""
        if self._id and not self._is_free:
            for sequence in self._unanswered:
                if not self._is_under_way(sequence):
                    self.ended(CommandId(self._id, sequence))
                    break
        return await super().begin()

    def called(self, command_id: CommandId) -> None:
        """A call with this id begins. `returned` must follow."""
        self._under_way[command_id] += 1
        self._answered.pop(command_id, None)

    def returned(self, command_id: CommandId, *, is_answered: bool) -> None:
        """The call ends."""
        self._under_way[command_id] -= 1
        if not self._under_way[command_id]:
            del self._under_way[command_id]
        if is_answered:
            self._answered[command_id] = None
            if len(self._answered) > _ANSWERED_IDS_KEPT:
                self._forget(next(iter(self._answered)))

    def make_room(self, session: int, floor: int) -> None:
        """Forgets the answers that have come; without one there, gives up the oldest ids that are not under way."""
        if session != self._id:
            return
        for command_id in list(self._answered):
            self._forget(command_id)
        if floor != next(iter(self._unanswered), 0):
            return
        end = floor + (self._next - floor) // _GIVEN_UP_SHARE + 1
        oldest = takewhile(lambda each: each < end and not self._is_under_way(each), self._unanswered)
        for sequence in list(oldest):
            self.ended(CommandId(session, sequence))

    async def close(self) -> None:
        """Ends the session, unless it has ids that were not answered."""
        for command_id in list(self._answered):
            self._forget(command_id)
        await super().close()

    def _forget(self, command_id: CommandId) -> None:
        del self._answered[command_id]
        self.ended(command_id)

    def _is_under_way(self, sequence: int) -> bool:
        return CommandId(self._id, sequence) in self._under_way
