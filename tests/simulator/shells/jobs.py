"""Jobs that hand in ledgers to a log of their own, who sweeps what they left, and a leader of that log in between.

Invariant: a job is in the log wholly, once and in one piece, or not at all; of all jobs that commit one transaction one
is; a job that was refused never comes in; entries that the leader believes confirmed stay, before all jobs that were
handed in after that; its appends are behind all jobs that were committed before (L10); and after a last sweep no ledger
of a job is left that the log does not name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import trio

from replog.api import Client
from replog.errors import (
    JobAbandonedError,
    KeyNotFoundError,
    LedgerNotFoundError,
    LogNotFoundError,
    ReplogError,
)
from replog.log.log_options import LogOptions
from replog.metastores.memory import MemoryMetastore
from replog.protocol.model import Position
from tests.simulator.shells.requests import Requests
from tests.simulator.shells.world import JudgedWorld

JOBS_EVERY = 3  # of how many seeds one has jobs, beside all others
JOBS_LOG = "jobs"
_TRANSACTION = "stream"
_ATTEMPTS = 3


class Jobs:
    """The actors on that log, and the known facts about it."""

    def __init__(
        self, world: JudgedWorld, metastore: MemoryMetastore, is_stopping: Callable[[], bool], *, is_led_long: bool
    ) -> None:
        self.world = world
        self.requests = Requests(world, metastore, JOBS_LOG)
        self.leader = ""  # the process that led last
        self._is_stopping = is_stopping
        self._led_entries_max, self._rolls_rate = (500, 0.02) if is_led_long else (30, 0.2)
        self._patience_s = (5.0, 5.0, 0.3, 0.05, 0.0) if is_led_long else (5.0,)
        self._count = 0
        self._data: dict[str, list[bytes]] = {}  # of each job, in order
        self._transaction: dict[str, int] = {}
        self._committed: dict[str, None] = {}  # jobs that were told so
        self._refused: dict[str, None] = {}
        self._done = 0  # the highest transaction that is known to be committed
        self._confirmed: dict[Position, bytes] = {}  # records of leaders
        self._appended: dict[
            Position, int
        ] = {}  # and how many jobs had been told that they are committed when each was appended
        self._handed_in: dict[str, Position] = {}  # the last record that was confirmed before a job was

    # -- acting ---------------------------------------------------------------------------------------------------

    async def commit(self, client: Client, process: str) -> None:
        """Runs jobs: each writes ledgers, some of them twice, and hands in one of each."""
        chance = self.world.stream("jobs")
        while not self._is_stopping():
            self._count += 1
            job = f"job {self._count}"
            self._transaction[job] = self._done + chance.choice((1, 1, 1, 2, 0))
            self._data[job] = []
            ledger_ids: list[int] = []
            for part in range(chance.randint(1, 3)):
                attempts = [await self._write(client, process, job, part) for _ in range(chance.choice((1, 1, 2)))]
                ledger_ids.append(attempts[-1])
                self._data[job] += [_record(job, part, entry) for entry in range(3)]
            await self._hand_in(client, process, job, ledger_ids)
            await trio.sleep(chance.choice((0.0, 0.05, 0.3)))

    async def _write(self, client: Client, process: str, job: str, part: int) -> int:
        custom = {"log": JOBS_LOG, "job": job, "process": process}
        async with client.create_ledger(custom=custom) as writer:
            await writer.extend([_record(job, part, entry) for entry in range(3)])
        return writer.ledger_id

    async def _hand_in(self, client: Client, process: str, job: str, ledger_ids: list[int]) -> None:
        number = self._transaction[job]
        patience_s = self.world.stream("patience").choice(self._patience_s)
        if self._confirmed:
            self._handed_in[job] = max(self._confirmed)
        for attempt in range(_ATTEMPTS):
            self.requests.begins(process, ledger_ids)
            try:
                added = await client.jobs.append_ledgers(
                    JOBS_LOG,
                    ledger_ids,
                    transaction=(_TRANSACTION, number),
                    job=job,
                    custom={"values": "text"},
                    patience_s=patience_s,
                )
            except (JobAbandonedError, LedgerNotFoundError) as error:
                self.world.tell("jobs", f"{job} is refused: {error}")
                self.world.count("job refused")
                self._refused[job] = None
                if error.ledger_id not in ledger_ids:
                    self.world.violated("L3", f"the jobs' log names a ledger that does not exist: {error}")
                return
            except ReplogError:
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            self._done = max(self._done, number)
            self.world.tell("jobs", f"{job} committed {number}: {added.is_new}")
            self.world.count("job committed" if added.is_new else "job was committed before")
            if added.is_new:
                self._committed[job] = None
            return

    async def sweep(self, client: Client, process: str) -> None:
        """Sweeps: now and then also a job that may be about to commit."""
        chance = self.world.stream("sweeping")
        while not self._is_stopping():
            await trio.sleep(chance.random())
            job = f"job {self._count}" if chance.random() < 0.3 else None
            deleted = await client.jobs.sweep(JOBS_LOG, grace_s=chance.choice((0.3, 3.0)), job=job)
            self.world.tell("jobs", f"swept {deleted}, {job or 'all'}")
            for _ in deleted:
                self.world.count("ledger swept")

    async def lead(self, client: Client, process: str) -> None:
        """Appends to the log, rolls, and is deposed by jobs."""
        chance = self.world.stream("jobs' leader")
        self.leader = process
        async with client.write_log(JOBS_LOG, options=LogOptions(custom={"process": process})) as log:
            for number in range(chance.randint(1, self._led_entries_max)):
                data = b"%s#%d" % (process.encode(), number)
                committed = len(self._committed)
                position = await log.append(data)
                self._confirmed[position], self._appended[position] = data, committed
                self.world.count("record beside jobs confirmed")
                if chance.random() < self._rolls_rate:
                    await log.roll()
                await trio.sleep(chance.choice((0.0, 0.05)))

    # -- judging --------------------------------------------------------------------------------------------------

    async def judge(self, client: Client) -> None:
        """Judges the final content of the log, and the ledgers left beside it."""
        try:
            for segment in (await client.log_metadata(JOBS_LOG)).to_recover():
                await client.recover_ledger(segment.ledger_id)  # its writer may have died before it told how far it got
            async with client.read_log(JOBS_LOG) as reader:
                found = [(record.position, record.data) async for record in reader]
        except LogNotFoundError:
            found = []
        by_position = dict(found)
        for position, data in self._confirmed.items():
            if by_position.get(position) != data:
                self.world.violated("W2", f"{position} of the jobs' log was confirmed as {data!r}, and is lost")
        self._judge_jobs([data for _, data in found])
        self._judge_order(found)
        await self._judge_what_is_left(client)

    def _judge_jobs(self, entries: list[bytes]) -> None:
        places: dict[str, list[int]] = defaultdict(list)
        for place, data in enumerate(entries):
            if data.startswith(b"job "):
                places[data.partition(b"/")[0].decode()].append(place)
        by_transaction: dict[int, str] = {}
        for job, found in places.items():
            if [entries[place] for place in found] != self._data[job] or found[-1] - found[0] != len(found) - 1:
                self.world.violated("L3", f"{job} is in the log in part, twice or in pieces: at {found}")
            other = by_transaction.setdefault(self._transaction[job], job)
            if other != job:
                self.world.violated("M1", f"{job} and {other} both committed transaction {self._transaction[job]}")
            if job in self._refused:
                self.world.violated("L3", f"{job} was refused, and is in the log")
        for job in self._committed:
            if job not in places:
                self.world.violated("W2", f"{job} was told that it is committed, and is not in the log")

    def _judge_order(self, found: list[tuple[Position, bytes]]) -> None:
        """Every call after another one had returned is behind that one in the log (L10)."""
        places: dict[str, list[Position]] = defaultdict(list)
        for position, data in found:
            places[data.partition(b"/")[0].decode()].append(position)
        for position, count in self._appended.items():
            for job in list(self._committed)[:count]:
                if places[job] and places[job][-1] > position:
                    self.world.violated("L10", f"{position} was appended after {job} was committed, and is before it")
        for job, position in self._handed_in.items():
            if places[job] and places[job][0] < position:
                self.world.violated("L10", f"{job} was handed in after {position} was confirmed, and is before it")

    async def _judge_what_is_left(self, client: Client) -> None:
        metastore = client._opened.ledgers.records.metastore
        try:
            await metastore.delete(f"sweeps/{JOBS_LOG}")  # what it says is advice
        except KeyNotFoundError:
            self.world.count("nothing was swept")
        await trio.sleep(1.0)
        await client.jobs.sweep(JOBS_LOG, grace_s=0.5)
        try:
            named = {segment.ledger_id for segment in await client.log_segments(JOBS_LOG)}
        except LogNotFoundError:
            named = set()
        for ledger_id in await client.ledgers():
            metadata, _ = await client._opened.ledgers.records.get(ledger_id)
            if "job" in metadata.custom and ledger_id not in named:
                self.world.violated("L3", f"ledger {ledger_id} of {metadata.custom['job']} is left after a sweep")


def _record(job: str, part: int, entry: int) -> bytes:
    return b"%s/%d/%d" % (job.encode(), part, entry)
