"""The leader of a machine: appends what callers ask for, and answers when it is confirmed and applied.

Rules:
- Only confirmed entries are applied. So the state always belongs to a prefix of the log, even in a deposed leader that
  does not know that it is deposed.
- A read is answered when an append is confirmed that was pushed after the read arrived. A deposed leader confirms
  nothing any more (L5), so an answer is never older than its question. No lease and no clock decides it.
- Requests go together: while entries are on their way to the bookies, further ones gather, until they are more than
  those, or those are confirmed. Then they share batches of the log, and reads share one barrier.
- The time of an entry is the machine's (L12), which begins where the log ends.
- A leader that fails answers everything that is open with "not the leader": callers repeat it at the next one.

Theory of the third rule: callers that are answered together send their next commands together. Pushing each at once
would part them, and a batch costs as much as some dozens of commands. Waiting until as many have gathered as are under
way keeps them together: at 100 callers, 86 commands a batch instead of 55, in processes that get a twentieth of a core.
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
from replog.machine.clock import MachineClock
from replog.machine.commands import Call
from replog.machine.core import Core, sessions_of
from replog.machine.entries import Answer, Code, Kind, MachineEntry
from replog.machine.options import MachineTuning
from replog.machine.visits import Visit
from replog.protocol.messages import Response
from replog.protocol.model import Position
from replog.runtime.entropy import Entropy
from replog.runtime.lent_thread import lent_thread

_OF_CALLERS = frozenset(map(int, (Kind.OPEN, Kind.COMMAND, Kind.TOUCH, Kind.EXPIRE, Kind.READ)))
# Members of enums are looked up slowly, and a leader does so for each command.
_COMMAND, _TOUCH, _CHECK, _READ = map(int, (Kind.COMMAND, Kind.TOUCH, Kind.CHECK, Kind.READ))
_DONE = int(Code.DONE)
_NOWHERE = Position(0, 0)
_LOOKS_PER_TIMEOUT = 4
_GATHERED_BYTES_MAX = 8 << 20  # of commands: above it they are pushed, and the writer says whether it has room
# Turns of the event loop until a caller in this thread, who was answered, has sent its next command: it is woken, its member's
# task is woken, and sends.
_TURNS_OF_A_CALLER = 3
# Comparing states may take this part of the time at most.
_CHECK_SHARE = 0.01


class _Pending:
    """An entry, and its waiting caller. It has a position once it was pushed."""

    __slots__ = ("call", "entry", "position", "waiting")

    def __init__(self, entry: MachineEntry, call: Call | None, waiting: Sequence[tuple[Visit, int]]) -> None:
        self.position = _NOWHERE
        self.entry = entry
        self.call = call
        self.waiting = waiting


class _Gathered:
    """Requests that are not pushed yet: entries in their order, and the callers that wait for the next barrier."""

    __slots__ = ("entries", "readers", "size_bytes")

    def __init__(self) -> None:
        self.entries: list[_Pending] = []
        self.size_bytes = 0  # of the entries' bodies
        self.readers: list[tuple[Visit, int]] = []

    def __len__(self) -> int:
        return len(self.entries) + len(self.readers)


class Leader:
    """Leads from one takeover until the log's writer fails. `ended` is set then, and `error` says why."""

    def __init__(
        self,
        core: Core[Any],
        log: LogWriter,
        nursery: trio.Nursery,
        options: MachineTuning,
        entropy: Entropy,
        applied: Callable[[], None],
    ) -> None:
        self.ended = trio.Event()
        self.error: Exception | None = None
        self._core = core
        self._log = log
        self._nursery = nursery
        self._options = options
        self.clock = MachineClock(lambda: core.time_ns, entropy)
        self._applied = applied
        self._gathered = _Gathered()
        self._pending: deque[_Pending] = deque()  # pushed
        self._is_gathering = False  # a task will push what has gathered
        self._ready: dict[Reply, list[Response]] = {}
        self._lent_thread = lent_thread()
        self._heard: dict[int, float] = {}  # by session: when its caller was last heard of
        self._next_check = core.commands + (options.check_every or 0)
        self._no_check_before_s = 0.0

    # -- requests -----------------------------------------------------------------------------------------------------

    def take(self, visit: Visit, requests: Sequence[MachineEntry]) -> None:
        """Takes the requests of a visit, in their order (`Host.take`)."""
        if self.error is not None:
            visit.reply([visit.refused()])
            return
        time_ns = self.clock.now_ns()
        for place, entry in enumerate(requests):
            if entry.kind == _READ:
                self._gathered.readers.append((visit, place))
                self._gather()
                continue
            call = None
            if entry.kind not in _OF_CALLERS:
                self._answer(visit, place, Answer(Code.REFUSED, b"callers do not write such entries"))
                continue
            # In the log it would stop every member.
            try:
                if entry.kind == _COMMAND:
                    call = self._core.machine.decode_asked(entry.body)
                elif entry.kind == Kind.EXPIRE:
                    sessions_of(entry.body)
            except (CommandRefusedError, UnknownCommandError) as error:
                self._answer(visit, place, Answer(Code.REFUSED, str(error).encode()))
                continue
            answer = self._core.answer_at_once(entry)
            if answer is not None:
                self._answer(visit, place, answer)
                continue
            entry.time_ns = time_ns
            self._gathered.entries.append(_Pending(entry, call, ((visit, place),)))
            self._gathered.size_bytes += len(entry.body)
        self._gather()
        self._reply()

    def _append(self, entry: MachineEntry) -> None:
        """Appends an entry that no caller waits for."""
        self._gathered.entries.append(_Pending(entry, None, ()))
        self._gather()

    def _gather(self) -> None:
        if self._is_gathering:
            return
        # A batch costs as much as some dozens of commands. So a few commands wait for those under way, to go with the
        # next commands of their callers; as many as those are a batch of their own.
        gathered = self._gathered
        if len(gathered) > len(self._pending) or gathered.size_bytes > _GATHERED_BYTES_MAX:
            self._is_gathering = True
            self._nursery.start_soon(self._confirm)

    def _push(self, each: _Pending) -> None:
        entry = each.entry
        entry.time_ns = entry.time_ns or self.clock.now_ns()
        try:
            each.position = self._log.push_nowait(entry.encode())
        except trio.WouldBlock:
            for visit, place in each.waiting:
                self._answer(visit, place, Answer(Code.BUSY))
            return
        except PayloadTooLargeError as error:
            for visit, place in each.waiting:
                self._answer(visit, place, Answer(Code.REFUSED, str(error).encode()))
            return
        self._pending.append(each)

    def _push_gathered(self) -> None:
        """Pushes what has gathered; raises as `LogWriter.push_nowait` if the writer has failed."""
        gathered, self._gathered = self._gathered, _Gathered()
        # As late as possible: the barrier must be pushed after each read that it answers has arrived.
        if gathered.readers:
            gathered.entries.append(_Pending(MachineEntry(Kind.BARRIER), None, gathered.readers))
        for place, each in enumerate(gathered.entries):
            try:
                self._push(each)
            except (ReplogError, trio.ClosedResourceError):
                self._gathered.entries = gathered.entries[place:]  # `fail` answers them
                raise
        self._reply()

    async def _confirm(self) -> None:
        """Pushes what has gathered, waits until all that was pushed by now is confirmed, and applies it."""
        # Not after the flush: that does not wait for entries pushed meanwhile, which need another one.
        self._is_gathering = False
        if self.error is not None:
            return
        try:
            if len(self._gathered) == 1 and not self._pending:
                self._lent_thread.lend(self._push_gathered)  # the only caller waits for nothing else
            else:
                self._push_gathered()
            await self._log.flush()
        except (ReplogError, trio.ClosedResourceError) as error:
            # First: callers would repeat commands that were confirmed before the writer failed.
            self._apply_confirmed()
            self.fail(error)
            return
        self._apply_confirmed()
        if self._gathered:
            for _ in range(0 if self._pending else _TURNS_OF_A_CALLER):
                await trio.lowlevel.checkpoint()
            self._gather()

    # -- applying -----------------------------------------------------------------------------------------------------

    def _apply_confirmed(self) -> None:
        last = self._log.last_add_confirmed
        if last is None or self.error is not None:
            return
        pending, core, now_s = self._pending, self._core, trio.current_time()
        while pending and pending[0].position <= last:
            each = pending.popleft()
            entry, kind = each.entry, each.entry.kind
            began_s = trio.current_time() if kind == _CHECK else 0.0
            answer = core.apply(each.position, entry, each.call) or Answer(_DONE, position=each.position)
            if kind in (_COMMAND, _TOUCH):
                self._heard[entry.session] = now_s
            elif kind == _CHECK and core.checked is not None:
                duration_s = trio.current_time() - began_s
                self._no_check_before_s = trio.current_time() + duration_s / _CHECK_SHARE
                found = [*core.checked[0], core.checked[1]]
                self._append(MachineEntry(Kind.HASH, body=json.dumps(found).encode()))
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
            self._append(MachineEntry(Kind.CHECK))

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
            # During a pause of this process, no caller was heard: every session gets the whole time again.
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
                self._append(MachineEntry(Kind.EXPIRE, body=json.dumps(silent).encode()))

    def ask_whether_deposed(self) -> None:
        """Appends a barrier: it shows the leader a takeover by another member (L5)."""
        if self.error is None:
            self._append(MachineEntry(Kind.BARRIER))

    def fail(self, error: Exception) -> None:
        """Ends: the log's writer has failed with this error, or is being left."""
        if self.error is not None:
            return
        self.error = error
        entries = [*self._pending, *self._gathered.entries]
        waiting = [*self._gathered.readers, *(each for pending in entries for each in pending.waiting)]
        self._pending.clear()
        self._gathered = _Gathered()
        for visit in dict.fromkeys(visit for visit, _ in waiting):
            self._ready.setdefault(visit.reply, []).append(visit.refused())
        self._reply()
        self.ended.set()
