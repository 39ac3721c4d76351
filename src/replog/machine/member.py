"""One member of a machine: follows the log, and competes to lead it.

Rules:
- Exactly one task applies entries at a time: the follower, or the leader. An elected member stops the follower, reads
  the log up to its own takeover, and only then serves.
- After any error the member goes on behind the last entry that it applied: no gap, nothing twice.
- An entry that this program does not understand, or a state that differs from the leader's, ends the member with a
  named error.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from typing import Any

import trio

from replog.errors import (
    EntryNotFoundError,
    FencedError,
    KeyExistsError,
    LedgerNotFoundError,
    LogNotFoundError,
    MetastoreError,
    PositionError,
    ReplogError,
    TransientError,
    TrimmedError,
)
from replog.log.log_options import LogOptions
from replog.log.log_writer import LogWriter
from replog.log.record_batches import RecordBatch
from replog.log.snapshot_format import snapshots_name
from replog.machine import snapshots
from replog.machine.clock import MachineClock
from replog.machine.context import Logs, MachineContext, encode_leader, leader_key
from replog.machine.core import BeginningGoneError, Core, LogGoesBackError
from replog.machine.entries import Kind, MachineEntry, decode_entry
from replog.machine.leading import Leader
from replog.machine.options import MachineTuning
from replog.machine.saving import Saver
from replog.machine.visits import Reception
from replog.protocol.model import Position
from replog.records.bookies import Endpoint
from replog.records.paths import log_key_path
from replog.runtime.entropy import current_entropy
from replog.runtime.loggers import logger
from replog.runtime.nursery import open_service_nursery
from replog.runtime.threads import current_threads

_log = logger("replog.machine")

_AGAIN_S = 0.1  # after a failed attempt, doubled each time
_AGAIN_MAX_S = 2.0
# How long a new leader waits for the next entries before it gives up, so that another one may try.
_NOTHING_NEW_S = 30.0
# Of what comes one after the other, a follower applies some at a time, unless a read waits for it: asking the bookies for each
# batch would cost the members more than the commands do.
_REST_S = 0.05
_APPLIED_AT_ONCE = 500  # entries, between which other tasks have their turn


class _Waiters:
    """The tasks that wait until entries are applied here."""

    def __init__(self) -> None:
        self._waiting: dict[trio.Event, Position] = {}
        self._come = trio.Event()

    async def wait(self, position: Position) -> None:
        """Returns once `applied` was called with this position, or one behind it."""
        event = trio.Event()
        self._waiting[event] = position
        self._come.set()
        try:
            await event.wait()
        finally:
            self._waiting.pop(event, None)

    def applied(self, position: Position) -> None:
        """Wakes waiters whose entry is applied."""
        for event in [each for each, wanted in self._waiting.items() if wanted <= position]:
            event.set()

    async def rest(self) -> None:
        """Waits a moment, or until a caller waits."""
        if not self._waiting:
            self._come = trio.Event()
            with trio.move_on_after(_REST_S):
                await self._come.wait()


class Member:
    """A machine's state in this process, kept up to date. `run` is the task behind it."""

    def __init__(
        self,
        name: str,
        core: Core[Any],
        logs: Logs,
        context: MachineContext,
        options: MachineTuning,
        log_options: LogOptions,
    ) -> None:
        self.name = name
        self.core = core
        self.member_id = current_entropy().token(8)
        self.reception = Reception(log_options.password)
        self.leads_from: Position | None = None
        self.restoring: float | None = None  # the part of a snapshot that was read, while one is
        self.caught_up = trio.Event()  # the log was read up to an end once
        self._logs = logs
        self._context = context
        self._options = options
        self._log_options = log_options
        self._applying = trio.Lock()
        self._following = trio.CancelScope()
        self._is_elected = False
        self._waiters = _Waiters()

    # -- looking ------------------------------------------------------------------------------------------------------

    async def until_applied(self, position: Position) -> None:
        """Returns when all up to this position is applied here. The caller sets the deadline."""
        while self.core.position < position:
            await self._waiters.wait(position)

    def _applied(self) -> None:
        self._waiters.applied(self.core.position)

    # -- following ----------------------------------------------------------------------------------------------------

    async def run(self, endpoints: list[Endpoint]) -> None:
        """Follows and competes until cancelled. Raises `UnknownCommandError`, `StateDivergedError`."""
        async with open_service_nursery() as nursery:
            nursery.start_soon(self._follow)
            await self._compete(endpoints)

    async def _follow(self) -> None:
        again_s = _AGAIN_S
        while True:
            async with self._applying:
                before = self.core.position
                with trio.CancelScope() as self._following:
                    if self._is_elected:
                        self._following.cancel()  # an elected member waits for the lock
                    await self._follow_on()
            again_s = _AGAIN_S if self.core.position > before else min(2 * again_s, _AGAIN_MAX_S)
            if not self._following.cancelled_caught:
                await trio.sleep(again_s)

    async def _follow_on(self) -> None:
        """Reads on, and returns on errors that may pass."""
        try:
            try:
                await self._read_on()
            except (TrimmedError, BeginningGoneError) as error:
                if not await self._restore():
                    raise self._gone(error) from error
        except (TransientError, LogNotFoundError, LedgerNotFoundError) as error:
            _log.info("machine %s: reads again, since %s", self.name, error)

    async def _read_on(self) -> None:
        if not self.core.position.segment:
            await self._restore()
        if not self.caught_up.is_set():
            with suppress(LogNotFoundError):  # it is empty: this is the first member
                await self._read(None, follow=False)
            self.caught_up.set()
        await self._read(None, follow=True)

    async def _read(self, before_segment: int | None, *, follow: bool) -> None:
        """Applies the next entries: to the end, or up to this segment."""
        core, password, begin = self.core, self._log_options.password, self.core.position
        after = begin if begin.segment else None
        async with AsyncExitStack() as stack:
            read_log = self._logs.read_log(self.name, after=after, follow=follow, password=password)
            try:
                reader = await stack.enter_async_context(read_log)
            except PositionError:
                await self._check_end()
                raise
            while True:
                try:
                    batch: RecordBatch | None = reader.receive_batch_nowait()
                except (trio.WouldBlock, EntryNotFoundError, LedgerNotFoundError):  # which the other call explains
                    if follow and not before_segment and core.position != begin:
                        await self._waiters.rest()
                    with trio.fail_after(_NOTHING_NEW_S if before_segment else float("inf")):
                        batch = await reader.receive_batch()
                if batch is None or (before_segment and batch.segment >= before_segment):
                    return
                await self._apply(batch)

    async def _check_end(self) -> None:
        """Raises `LogGoesBackError` if the log ends before the entries applied here."""
        position, head = self.core.position, await self._logs.log_metadata(self.name)
        if position.segment >= head.next_segment_number:
            end = f"log {self.name!r} ends with segment {head.next_segment_number - 1}"
            raise LogGoesBackError(
                f"{end}, and this member has applied all up to {position}, from a snapshot or before: the metastore went back, "
                "or log and snapshots are of two back-ups. Nothing was changed; restore both from one back-up"
            )

    async def _apply(self, batch: RecordBatch) -> None:
        core, (segment, first) = self.core, batch.first_position
        for number, payload in enumerate(batch.payloads()):
            core.apply(Position(segment, first + number), decode_entry(payload))
            if number % _APPLIED_AT_ONCE == _APPLIED_AT_ONCE - 1:
                self._applied()
                await trio.lowlevel.checkpoint()
        self._applied()

    async def _restore(self) -> bool:
        """Becomes the newest snapshot, if that is ahead; returns whether it is."""

        def progress(done_bytes: int, size_bytes: int) -> None:
            self.restoring = done_bytes / size_bytes if size_bytes else 1.0

        try:
            data = await snapshots.load(self.name, self._logs, self._log_options.password, progress)
            if data is None:
                return False
            # Beside the state in use, which must stay as it is if loading fails; and in a thread, as it may take long.
            restored = Core(self.core.machine)
            await current_threads().run(restored.load, data)
        finally:
            self.restoring = None
        # What was applied here may be ahead of the newest snapshot: adopting that would apply entries twice.
        if restored.position <= self.core.position:
            return False
        _log.info("machine %s: restored %d bytes of a snapshot at %s", self.name, len(data), restored.position)
        self.core.adopt(restored)
        self._applied()
        return True

    async def _catch_up(self, began: Position, ledger_id: int) -> None:
        """Applies everything before the segment in which this leader began. Raises `FencedError` if a later leader trimmed it."""
        while True:
            try:
                if not self.core.position.segment:
                    await self._restore()
                # Only a leader that began later saves a snapshot behind that.
                if self.core.position > began:
                    with suppress(LogNotFoundError):
                        await self._check_end()
                    raise FencedError(ledger_id, "a later leader has saved a snapshot: this one is deposed")
                await self._read(began.segment, follow=True)
                # Another leader may have saved one, and trimmed entries that were not read here.
                if not self.core.has_begun and await self._restore():
                    continue
            except (TrimmedError, BeginningGoneError) as error:
                if not await self._restore():
                    raise self._gone(error) from error
            else:
                return

    # -- leading ------------------------------------------------------------------------------------------------------

    async def _compete(self, endpoints: list[Endpoint]) -> None:
        again_s = _AGAIN_S
        while True:
            began_s = trio.current_time()
            try:
                async with self._logs.lead_log(self.name, options=self._log_options) as log:
                    await self._lead(log, endpoints)
            # Of a leader that was paused, the next one may have trimmed away the ledger that it writes to.
            except (FencedError, LedgerNotFoundError) as error:
                _log.info("machine %s: %s was deposed: %s", self.name, self.member_id, error)
            except (TransientError, trio.ClosedResourceError, trio.TooSlowError) as error:
                _log.info("machine %s: %s does not lead: %s", self.name, self.member_id, error)
            again_s = _AGAIN_S if trio.current_time() - began_s > _AGAIN_MAX_S else min(2 * again_s, _AGAIN_MAX_S)
            await trio.sleep(again_s)

    async def _lead(self, log: LogWriter, endpoints: list[Endpoint]) -> None:
        term = log.segment
        self._is_elected = True
        self._following.cancel()
        async with self._applying, open_service_nursery() as nursery:
            saver = Saver(
                self.name,
                self.core,
                self._logs,
                self._context.metastore,
                self._log_options,
                self._options.snapshot_every,
            )

            def applied() -> None:
                self._applied()
                saver.applied()

            leader = Leader(self.core, log, nursery, self._options, current_entropy(), applied)
            try:
                # What is behind this entry in the log was appended by this leader, or by a later one.
                lead = self._entry(Kind.LEAD)
                began = await log.append(lead.encode())
                await self._catch_up(began, log.ledger_id)
                self.core.apply(began, lead)
                leader.clock.start()
                if not self.core.has_begun:
                    await self._begin(log, leader.clock)
                self.caught_up.set()
                self._applied()
                self.leads_from, self.reception.leader = began, leader
                nursery.start_soon(self._announce, term, endpoints)
                nursery.start_soon(leader.expire_sessions)
                nursery.start_soon(saver.run, log)
                nursery.start_soon(self._watch_record, term, leader)
                await leader.ended.wait()
            finally:
                self._is_elected = False
                self.leads_from = self.reception.leader = None
                leader.fail(trio.ClosedResourceError("this member is left"))
            assert leader.error is not None, "it has ended"
            raise leader.error

    async def _begin(self, log: LogWriter, clock: MachineClock) -> None:
        """Writes that the machine begins here. Raises `BeginningGoneError` if it has begun before, and that was trimmed."""
        head = await self._logs.log_metadata(self.name)
        if not head.has_beginning:
            # Once it is confirmed, this leader is the last one: no other leader began meanwhile, saved a snapshot and trimmed.
            await log.append(self._entry(Kind.BARRIER).encode())
            raise self._gone()
        begin = self._entry(Kind.BEGIN, clock.now_ns())
        self.core.apply(await log.append(begin.encode()), begin)

    def _gone(self, error: ReplogError | None = None) -> BeginningGoneError | TrimmedError:
        problem = (
            f"machine {self.name!r}: what it has not applied was trimmed away, and log {snapshots_name(self.name)!r} has no "
            "later snapshot that this program can read. Restore both logs from a back-up, or delete both and begin anew"
        )
        if isinstance(error, TrimmedError):
            return TrimmedError(self.name, problem, error.first_available)
        return BeginningGoneError(problem)

    def _entry(self, kind: Kind, time_ns: int = 0) -> MachineEntry:
        # A leader that has not applied the whole log does not know the time (L12): then it writes none.
        return MachineEntry(kind, time_ns=time_ns, body=self.member_id.encode())

    async def _announce(self, term: int, endpoints: list[Endpoint]) -> None:
        key, value = leader_key(self.name, term), encode_leader(self.member_id, endpoints)
        while True:
            try:
                async with self._context.metastore.announce(key, value):
                    await trio.sleep_forever()
            except KeyExistsError as error:
                _log.warning("machine %s: %s can't announce itself: %s", self.name, self.member_id, error)
            except MetastoreError:
                pass  # other members do not find this leader for now
            await trio.sleep(_AGAIN_MAX_S)

    async def _watch_record(self, term: int, leader: Leader) -> None:
        """An idle leader learns here that it was deposed."""
        key, version = log_key_path(self.name), None
        metastore = self._context.metastore
        while True:
            try:
                found = await metastore.get(key)
                is_first, version = version is None, found.version
                if not is_first:
                    leader.ask_whether_deposed()
                await metastore.wait_changed(key, version)
            except ReplogError:
                await trio.sleep(_AGAIN_MAX_S)
