"""The processes of a trial: bookies, the writer, and takeovers. What they say is for the trial, see `carrying_out`."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import attrs
import trio

import replog
from replog.config.client import ClientTuning
from replog.errors import (
    BookieError,
    EntryUnreadableError,
    LossNotAcceptedError,
    NotEnoughBookiesError,
    RecoveryUndecidedError,
    ReplogError,
    StorageError,
)
from replog.log.log_writer import LogWriter
from replog.runtime.entropy import Entropy, use_entropy
from tests.failures.damages import WITHOUT_TRACE
from tests.failures.forks import Parent, Role
from tests.failures.storage_trials import AFTER, AFTER_BEGINS, Plan

LOG = "orders"
BEYOND = 200  # entries pushed and not waited for when all processes are killed
IDLE_S = 0.3
AGAIN_S = 0.2
SHORT_WAIT_S = 0.5
CLOCK_WRONG_BY_S = 50 * 365 * 86400.0
CLIENT = ClientTuning(
    add_timeout_s=20.0,  # who dies is noticed at once; who is slow on a busy machine is none of the faults
    lagging_bookie_timeout_s=20.0,
    read_timeout_s=2.0,
    speculative_read_after_s=0.3,
    connect_timeout_s=2.0,
    bookie_retry_after_s=0.2,
    bookie_retry_after_max_s=0.5,
)


def payload(number: int, plan: Plan) -> bytes:
    """The bytes of this entry: told apart from those of any other, whole or not."""
    own = random.Random(f"{plan.seed}/{number}")
    return b"%d " % number + own.randbytes(own.randint(0, plan.entry_bytes_max))


def number_of(data: bytes, plan: Plan) -> int:
    """The number of this entry, -1 if it is not as it was appended."""
    number, _, _ = data.partition(b" ")
    return int(number) if number.isdigit() and data == payload(int(number), plan) else -1


def set_clock(plan: Plan) -> None:
    """Makes this process's time of day wrong, if it is to be."""
    if plan.has_wrong_clocks:
        wrong_by_ns = int(random.SystemRandom().uniform(-CLOCK_WRONG_BY_S, CLOCK_WRONG_BY_S) * 1e9)
        use_entropy(Entropy(time_ns=lambda: time.time_ns() + wrong_by_ns))


def bookie_role(plan: Plan, directory: Path, metastore: str) -> Role:
    async def serve(parent: Parent) -> None:
        options = replog.BookieOptions(storage=plan.storage, listen=("tcp:127.0.0.1:0",), read_only_below_bytes=0)
        config = replog.BookieConfig(directory=str(directory), metastore=metastore, options=options)
        set_clock(plan)
        with trio.open_signal_receiver(signal.SIGTERM) as terminated:
            async with replog.serve_bookie(config) as bookie:
                parent.say(serves=bookie.bookie_id)
                await terminated.__anext__()

    def run(parent: Parent) -> None:
        try:
            trio.run(serve, parent)
        except* (StorageError, BookieError) as group:
            parent.say(stopped=repr(group.exceptions[0]))
            raise

    return run


async def _append_all(plan: Plan, log: LogWriter, parent: Parent) -> None:
    chance = random.Random(plan.seed)
    pauses = sorted({plan.lags_from if plan.lagging is not None else 0, plan.copied_at or 0} - {0})
    number = 0
    while number < plan.entries:
        if pauses and number >= pauses[0]:
            await parent.ask(paused=number)
            pauses = [each for each in pauses if each > number]
        until = min(number + chance.randint(1, plan.extend_max), plan.entries, *pauses)
        positions = await log.extend([payload(each, plan) for each in range(number, until)])
        parent.say(confirmed=number, positions=list(map(str, positions)))
        number = until
    if plan.is_idle_before:
        await trio.sleep(IDLE_S)


async def _push_beyond(plan: Plan, log: LogWriter, parent: Parent) -> None:
    for number in range(plan.entries, plan.entries + BEYOND):
        position = await log.push(payload(number, plan))
        if number % 7 == 0:
            await log.flush()
            parent.say(confirmed=number, positions=[str(position)])


async def _append_deposed(plan: Plan, log: LogWriter, parent: Parent) -> None:
    """Goes on when the parent says so: nothing of it may be confirmed."""
    await parent.ask(idle=True)
    number = plan.entries
    try:
        while True:
            position = await log.append(payload(number, plan))
            parent.say(confirmed=number, positions=[str(position)])
            number += 1
    except ReplogError as error:
        parent.say(ended=repr(error))


def writer_role(plan: Plan, metastore: str) -> Role:
    async def write(parent: Parent) -> None:
        set_clock(plan)
        options = attrs.evolve(CLIENT, roll_entries=plan.roll_entries)
        async with replog.connect(metastore, options=options, quorum=plan.quorum) as client:
            async with client.write_log(LOG) as log:
                await _append_all(plan, log, parent)
                parent.say(done=True)
                if plan.is_fence_lost:
                    await _append_deposed(plan, log, parent)
                if plan.is_writing_when_killed:
                    await _push_beyond(plan, log, parent)
                await trio.sleep_forever()

    return lambda parent: trio.run(write, parent)


async def _read_all(plan: Plan, client: replog.Client, within_s: float) -> list[tuple[str, int]]:
    """Positions and numbers. What was closed long ago may have its copies on bookies that come late."""
    deadline_s = trio.current_time() + within_s
    while True:
        try:
            async with client.read_log(LOG) as reader:
                return [(str(record.position), number_of(record.data, plan)) async for record in reader]
        except EntryUnreadableError:
            if trio.current_time() > deadline_s:
                raise
            await trio.sleep(AGAIN_S)


def takeover_role(plan: Plan, metastore: str, within_s: float, number: int) -> Role:
    """Takes over for the so-manieth time, appends a little, and reads all."""

    async def take_over(parent: Parent) -> None:
        set_clock(plan)
        options = attrs.evolve(CLIENT, takeover_timeout_s=3 * within_s + 20, recovery_timeout_s=within_s)
        if plan.fault in WITHOUT_TRACE:  # all can be reached, however busy the machine is
            options = attrs.evolve(options, absence_wait_s=within_s)
        elif not plan.is_default_wait:
            options = attrs.evolve(options, absence_wait_s=SHORT_WAIT_S)
        try:
            async with replog.connect(metastore, options=options, quorum=plan.quorum) as client:
                async with client.write_log(LOG) as log:
                    parent.say(took_over=True)
                    await log.extend([payload(number * AFTER_BEGINS + each, plan) for each in range(AFTER)])
                parent.say(read=await _read_all(plan, client, within_s))
        except ReplogError as error:
            says_who = isinstance(error, RecoveryUndecidedError | NotEnoughBookiesError | EntryUnreadableError)
            parent.say(refused=f"{type(error).__name__}: {error}", says_who=says_who)

    return lambda parent: trio.run(take_over, parent)


def operator_role(plan: Plan, metastore: str, bookie_ids: list[str], *, accept: bool) -> Role:
    """Declares these bookies lost, and accepts the loss if that is asked for."""

    async def declare(parent: Parent) -> None:
        async with replog.connect(metastore, options=CLIENT, quorum=plan.quorum) as client:
            # A killed bookie is announced until its lease ends, except in LMDB.
            while {each.bookie_id for each in await client.admin.bookies()} & {*bookie_ids}:  # noqa: ASYNC110 - has no event
                await trio.sleep(0.2)
            try:
                at_risk = await client.admin.declare_lost(bookie_ids, accept_loss=accept)
                parent.say(declared=list(map(str, at_risk)), accepted=accept)
            except LossNotAcceptedError:
                at_risk = await client.admin.declare_lost(bookie_ids, accept_loss=True)
                parent.say(declared=list(map(str, at_risk)), accepted=True)

    return lambda parent: trio.run(declare, parent)
