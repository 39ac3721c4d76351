"""The leader of a machine: appends what callers ask for, and answers when it is confirmed and applied.

Rules:
- Only what is confirmed is applied. So the state is at any time that of a prefix of the log, even in a deposed leader that
  does not know that it is deposed.
- A read is answered when an append is confirmed that was pushed after the read arrived. A deposed leader confirms nothing
  any more (L5), so an answer is never older than its question. No lease and no clock decides it.
- Requests that arrive in one turn of the event loop share batches of the log, and reads share one barrier.
- A leader that fails answers everything that is open with "not the leader": callers repeat it at the next one.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import trio

from replog.abc import Reply
from replog.errors import CommandRefusedError, PayloadTooLargeError, ReplogError, UnknownCommandError
from replog.log.log_writer import LogWriter
from replog.machine.commands import Call
from replog.machine.core import Core, sessions_of
from replog.machine.entries import Answer, Code, Kind, MachineEntry
from replog.machine.options import MachineOptions
from replog.machine.visits import Visit
from replog.protocol.messages import Response
from replog.protocol.model import Position
from replog.runtime.chance import Chance

_OF_CALLERS = frozenset({Kind.OPEN, Kind.COMMAND, Kind.TOUCH, Kind.EXPIRE, Kind.READ})
_LOOKS_PER_TIMEOUT = 4
# Comparing states may take this part of the time at most.
_CHECK_SHARE = 0.01


class _Pending:
    """An entry that was pushed, and who waits for it."""

    __slots__ = ("call", "entry", "position", "waiting")

    def __init__(
        self, position: Position, entry: MachineEntry, call: Call | None, waiting: list[tuple[Visit, int]]
    ) -> None:
        self.position = position
        self.entry = entry
        self.call = call
        self.waiting = waiting


class Leader:
    """Leads from one takeover until the log's writer fails. `ended` is set then, and `error` says why."""

    def __init__(
        self,
        core: Core[Any],
        log: LogWriter,
        nursery: trio.Nursery,
        options: MachineOptions,
        chance: Chance,
        applied: Callable[[], None],
    ) -> None:
        self.ended = trio.Event()
        self.error: Exception | None = None
        self._core = core
        self._log = log
        self._nursery = nursery
        self._options = options
        self._chance = chance
        self._applied = applied
        self._pending: deque[_Pending] = deque()
        self._readers: list[tuple[Visit, int]] = []  # who wait for the next barrier
        self._is_gathering = False  # a task will flush what was pushed
        self._ready: dict[Reply, list[Response]] = {}
        self._heard: dict[int, float] = {}  # by session: when its caller was last heard of
        self._next_check = core.commands + (options.check_every or 0)
        self._no_check_before_s = 0.0

    # -- requests -----------------------------------------------------------------------------------------------------

    def take(self, visit: Visit, requests: Sequence[MachineEntry]) -> None:
        """As `Host.take`."""
        if self.error is not None:
            visit.reply([visit.refused()])
            return
        for place, entry in enumerate(requests):
            if entry.kind == Kind.READ:
                self._readers.append((visit, place))
                self._gather()
                continue
            call = None
            if entry.kind not in _OF_CALLERS:
                self._answer(visit, place, Answer(Code.REFUSED, b"callers do not write such entries"))
                continue
            # In the log it would stop every member.
            try:
                if entry.kind == Kind.COMMAND:
                    call = self._core.machine.decode_asked(entry.body)
                elif entry.kind == Kind.EXPIRE:
                    sessions_of(entry.body)
            except (CommandRefusedError, UnknownCommandError) as error:
                self._answer(visit, place, Answer(Code.REFUSED, str(error).encode()))
                continue
            self._push(entry, call, [(visit, place)])
            if self.ended.is_set():
                break  # `fail` has answered the visit
        self._reply()

    def _push(self, entry: MachineEntry, call: Call | None, waiting: list[tuple[Visit, int]]) -> None:
        entry.time_ns = self._chance.time_ns()
        try:
            position = self._log.push_nowait(entry.encode())
        except trio.WouldBlock:
            for visit, place in waiting:
                self._answer(visit, place, Answer(Code.BUSY))
            return
        except PayloadTooLargeError as error:
            for visit, place in waiting:
                self._answer(visit, place, Answer(Code.REFUSED, str(error).encode()))
            return
        except (ReplogError, trio.ClosedResourceError) as error:
            # It is not pending: `fail` answers those who wait for it only if they are among the readers.
            self._readers += waiting
            self.fail(error)
            return
        self._pending.append(_Pending(position, entry, call, waiting))
        self._gather()

    def _gather(self) -> None:
        if not self._is_gathering:
            self._is_gathering = True
            self._nursery.start_soon(self._confirm)

    async def _confirm(self) -> None:
        """Waits until all that was pushed by now is confirmed, and applies it."""
        # As late as possible: the barrier must be pushed after each read that it answers has arrived.
        if self._readers and self.error is None:
            readers, self._readers = self._readers, []
            self._push(MachineEntry(Kind.BARRIER), None, readers)
        # Not after the flush: that does not wait for what is pushed meanwhile, which needs another one.
        self._is_gathering = False
        try:
            await self._log.flush()
        except (ReplogError, trio.ClosedResourceError) as error:
            # First: callers would repeat what was confirmed before the writer failed.
            self._apply_confirmed()
            self.fail(error)
        else:
            self._apply_confirmed()

    # -- applying -----------------------------------------------------------------------------------------------------

    def _apply_confirmed(self) -> None:
        last = self._log.last_add_confirmed
        if last is None or self.error is not None:
            return
        pending, core, now_s = self._pending, self._core, trio.current_time()
        while pending and pending[0].position <= last:
            each = pending.popleft()
            entry = each.entry
            began_s = trio.current_time() if entry.kind == Kind.CHECK else 0.0
            answer = core.apply(each.position, entry, each.call) or Answer(Code.DONE, position=each.position)
            if entry.kind in (Kind.COMMAND, Kind.TOUCH):
                self._heard[entry.session] = now_s
            elif entry.kind == Kind.CHECK and core.checked is not None:
                duration_s = trio.current_time() - began_s
                self._no_check_before_s = trio.current_time() + duration_s / _CHECK_SHARE
                found = [*core.checked[0], core.checked[1]]
                self._push(MachineEntry(Kind.HASH, body=json.dumps(found).encode()), None, [])
            for visit, place in each.waiting:
                self._answer(visit, place, answer)
        self._check_now_and_then()
        self._applied()
        self._reply()

    def _check_now_and_then(self) -> None:
        every = self._options.check_every
        is_due = every is not None and self._core.commands >= self._next_check
        if every is not None and is_due and trio.current_time() >= self._no_check_before_s:
            self._next_check = self._core.commands + every
            self._push(MachineEntry(Kind.CHECK), None, [])

    def _answer(self, visit: Visit, place: int, answer: Answer) -> None:
        response = visit.answered(place, answer)
        if response is not None:
            self._ready.setdefault(visit.reply, []).append(response)

    def _reply(self) -> None:
        ready, self._ready = self._ready, {}
        for reply, responses in ready.items():
            reply(responses)

    # -- the life of a leader -----------------------------------------------------------------------------------------

    async def expire_sessions(self) -> None:
        """Ends sessions whose callers are silent, by an entry."""
        timeout_s = self._options.session_timeout_s
        look_s = timeout_s / _LOOKS_PER_TIMEOUT
        began_s = looked_s = trio.current_time()
        while True:
            await trio.sleep(look_s)
            now_s = trio.current_time()
            # After a pause of this process, nobody could be heard: everybody gets the whole time again.
            if now_s - looked_s > 2 * look_s:
                began_s = now_s
            looked_s = now_s
            self._heard = {session: heard_s for session, heard_s in self._heard.items() if session in self._core}
            # A session that is seen for the first time counts as heard now: it spoke to another leader before.
            silent = [
                session
                for session in self._core.sessions
                if now_s - max(began_s, self._heard.setdefault(session, now_s)) > timeout_s
            ]
            if silent and self.error is None:
                self._push(MachineEntry(Kind.EXPIRE, body=json.dumps(silent).encode()), None, [])

    def ask_whether_deposed(self) -> None:
        """Appends a barrier: if somebody else has taken over, the leader learns it by that (L5)."""
        if self.error is None:
            self._push(MachineEntry(Kind.BARRIER), None, [])

    def fail(self, error: Exception) -> None:
        """Ends: the log's writer has failed with this error, or is being left."""
        if self.error is not None:
            return
        self.error = error
        waiting = [*self._readers, *(each for pending in self._pending for each in pending.waiting)]
        self._readers.clear()
        self._pending.clear()
        for visit in dict.fromkeys(visit for visit, _ in waiting):
            self._ready.setdefault(visit.reply, []).append(visit.refused())
        self._reply()
        self.ended.set()
