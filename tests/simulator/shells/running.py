"""One run of the shells: the storm, the calm in which everything must work again, and the verdict."""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from contextlib import nullcontext
from functools import partial

import attrs
import outcome
import trio

from replog.api import Client
from replog.config.bookie import BookieTuning
from replog.config.client import ClientTuning
from replog.errors import LogNotFoundError
from replog.log.checking import JOB_KEY, LOG_KEY
from replog.protocol.messages import Request, Response
from replog.protocol.model import LedgerMetadata
from replog.protocol.quorum import Quorum
from replog.records.ledgers import decode_ledger
from replog.records.paths import ledger_key_path
from replog.runtime.threads import use_threads
from replog.testing.simulating.lockstep import Lockstep, lockstep
from replog.testing.simulating.metastore import MetastoreServer
from replog.testing.simulating.network import Network
from replog.testing.simulating.processes import BookieHost, Clients
from replog.testing.simulating.scheduling import Livelock, run
from tests.simulator.chunked import small_chunks
from tests.simulator.shells.casting import WHOLE, Cast, drawn_cast
from tests.simulator.shells.jobs import JOBS_EVERY, Jobs
from tests.simulator.shells.keeping import CLOCKS, Keeping
from tests.simulator.shells.losses import Losses
from tests.simulator.shells.oracle import NAMED, Copies, FrozenConfirmed, check_answer, leaves
from tests.simulator.shells.repairs import PLACEMENT, REPAIRS, Repairs, zone
from tests.simulator.shells.repeats import REPEATS, Repeats, small_windows
from tests.simulator.shells.requests import REQUESTS
from tests.simulator.shells.short_lived import SHORT_LIVED_LOG
from tests.simulator.shells.terms import TERMS, Terms
from tests.simulator.shells.weather import BURNING, FULL, Weather, drawn_strategy, loses_disks
from tests.simulator.shells.workload import LEDGER_QUORUMS, LOG, Workload
from tests.simulator.shells.world import PASSWORD, JudgedWorld, Violation
from tests.simulator.shells.write_quorums import WriteQuorums

OPTIONS = ClientTuning(
    add_timeout_s=0.5,
    read_timeout_s=0.5,
    speculative_read_after_s=0.1,
    add_quorum_timeout_s=4.0,
    bookie_retry_after_s=0.4,
    metastore_timeout_s=2.0,
    takeover_timeout_s=8.0,
    recovery_timeout_s=4.0,
    connect_timeout_s=1.0,
    in_flight_bytes_max=2000,
    batch_bytes_max=300,
    roll_entries=40,
)
FULL_OPTIONS = attrs.evolve(OPTIONS, durability="write-quorum", write_quorum_timeout_s=2.5)
QUORUMS = [Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(4, 3, 2), Quorum(5, 3, 2)]
BOOKIES = (6, 6, 6, 5, 4, 3, 3)  # one of these: with three, nobody can ever be replaced
_COLLECTIONS_S = (0.5, 2.0, 20.0)  # the last one: only when it is asked for, and for swarms only
_ENDING_MAX_S = 60.0  # for all actors to end what they do, once the storm is over
_SETTLING_S = 8.0  # until bookies that were full take entries again, and nobody is avoided any more
_UNDER_WAY_S = 0.5
_CALM_MAX_S = 60.0  # for everything to work again
_PAGE_SEGMENTS = 2  # of logs: so that few rolls do what thousands do in life
_STEPS_NOW_MAX = 200_000  # of tasks, while no time passes


@attrs.frozen
class ShellResult:
    """How a run went. Two runs of a seed have the same digest, or the simulation is broken."""

    seed: int
    strategy: str
    violation: Violation | None
    digest: str
    steps: int
    coverage: Counter[str]


class _Run:
    def __init__(self, seed: int, transcript: list[str] | None, strategy: str | None, *, swarm: bool) -> None:
        self.seed = seed
        self._swarm = swarm
        self._given_strategy = strategy
        self.transcript = transcript
        self.world: JudgedWorld | None = None
        self.strategy = ""
        self.steps = 0

    async def main(self) -> None:
        """The whole run."""
        threads_before = threading.active_count()
        with trio.CancelScope() as scope:
            livelock = Livelock(scope, _STEPS_NOW_MAX)
            trio.lowlevel.add_instrument(livelock)
            async with lockstep() as threads:
                use_threads(threads)
                await self._in_world(threads)
        self.steps = livelock.steps
        assert self.world is not None
        if livelock.is_found:
            self.world.violated("W6", "tasks go on for ever, and no time passes")
        if threads.left and not self.world.violations:
            self.world.violated("threads", f"left behind: {', '.join(threads.left)}")
        if threading.active_count() > threads_before:
            self.world.violated("threads", f"{threading.active_count() - threads_before} are left")

    async def _in_world(self, threads: Lockstep) -> None:
        async with trio.open_nursery() as nursery:
            world = self.world = JudgedWorld(self.seed, nursery, threads, self.transcript)
            nursery.start_soon(world.run)
            await self._simulate(world)
            nursery.cancel_scope.cancel()

    async def _simulate(self, world: JudgedWorld) -> None:
        chance = world.stream("set-up")
        network = Network(world)
        metastore = MetastoreServer(network)
        options = BookieTuning(
            storage="memory",
            commit_bytes_max=chance.choice((300, 2000, 1 << 20)),
            commit_inline_when_idle=chance.random() < 0.3,
            garbage_collection_interval_s=chance.choice(_COLLECTIONS_S if self._swarm else _COLLECTIONS_S[:2]),
            close_timeout_s=5.0,
            heal="auto",
            heal_interval_s=world.stream("healing").choice((0.2, 1.0, 5.0)),
        )
        strategy = self._given_strategy or drawn_strategy(self.seed)
        loses, spare = loses_disks(strategy), int(strategy == REPAIRS)
        count = chance.choice([each for each in BOOKIES if each > 3 or strategy not in BURNING])
        made = [
            BookieHost(number, network, metastore, attrs.evolve(options, labels=(zone(number),) if spare else ()))
            for number in range(count + spare)
        ]
        bookies = made[:count]  # without the newcomer that replaces who burns
        lost = int(strategy in BURNING)  # who burns is replaced: there is one more than an ensemble has
        quorum = chance.choice([each for each in QUORUMS if each.ensemble + lost <= count and _fits(each, loses=loses)])
        if quorum.ensemble == count:
            world.count("as many bookies as an ensemble has")
        client_options = FULL_OPTIONS if strategy == FULL else OPTIONS
        placement = PLACEMENT if spare else "random"
        clients = Clients(network, metastore, client_options, quorum, _PAGE_SEGMENTS, placement)
        for bookie in bookies:
            await bookie.start()
        weather = Weather(network, metastore, bookies, clients, strategy)
        write_quorums = WriteQuorums(world, made, OPTIONS.add_timeout_s, metastore, is_guaranteed=strategy == FULL)
        repairs = Repairs(world, metastore, made, clients) if strategy == REPAIRS else None
        jobs: Jobs | None = None
        is_led_long = strategy == REQUESTS
        if is_led_long or self.seed % JOBS_EVERY == JOBS_EVERY - 1:
            jobs = Jobs(world, metastore.inner, lambda: workload.is_stopping, is_led_long=is_led_long)
        if jobs is not None and strategy == REQUESTS:
            jobs.requests.on_answer = partial(_deafen_leader, weather, jobs)
        _watch(world, network, metastore, made, weather, write_quorums, repairs, jobs)
        self.strategy = weather.strategy
        world.count(f"strategy {self.strategy}")
        copies = Copies(world, [bookie.disk for bookie in made], clients.quorum.ack, partial(_stored, metastore))
        network.on_request = copies.check_published
        quorums = [each for each in LEDGER_QUORUMS if each.ensemble + lost <= count and _fits(each, loses=loses)]
        workload = Workload(world, clients, copies, quorums, write_quorums)
        if loses:
            weather.losses = Losses(network, metastore, bookies, clients, workload, weather.in_trouble)
        weather.recover = workload.recover
        terms = Terms(world, metastore, lambda: workload.is_stopping) if strategy == TERMS else None
        repeats = Repeats(world, lambda: workload.is_stopping) if strategy == REPEATS else None
        keeping = Keeping(world, made, lambda: workload.is_stopping) if strategy == CLOCKS else None
        cast = drawn_cast(world.stream("cast")) if self._swarm else WHOLE
        await _storm(world, cast, weather, workload, jobs, repairs, terms, repeats, keeping)
        if not world.violations:
            others = repairs, terms, repeats, keeping
            calm = _Calm(world, clients, workload, made, jobs, weather.losses, write_quorums, *others)
            await _judge(world, calm)
        for bookie in made:
            await bookie.leave()


def _fits(quorum: Quorum, *, loses: bool) -> bool:
    """Whether it survives the troubles, where one bookie loses what it acknowledged and others are away too."""
    return not loses or quorum.write > quorum.ack > 1


def _watch(
    world: JudgedWorld,
    network: Network,
    metastore: MetastoreServer,
    bookies: list[BookieHost],
    weather: Weather,
    write_quorums: WriteQuorums,
    repairs: Repairs | None,
    jobs: Jobs | None,
) -> None:
    """Has the oracle look at what bookies answer and drop, and at what clients send."""
    disks = {bookie.name: bookie.disk for bookie in bookies}

    frozen = FrozenConfirmed(world, partial(_fragment_start, metastore))

    def on_answer(process: str, client: str, request: Request, response: Response) -> None:
        check_answer(world, disks[process.partition(".")[0]], request, response)
        frozen.answered(client, request, response)
        if repairs is not None:
            repairs.answered(disks[process.partition(".")[0]], request)

    def on_send(client: str, process: str, request: Request) -> None:
        frozen.sent(client, request)
        weather.sent(client, process, request)
        write_quorums.sent(client, process, request)
        if repairs is not None:
            repairs.sent(client, request)
        if jobs is not None:
            jobs.requests.sent(client, request)

    def on_drop(ledger_id: int) -> None:
        world.count("ledger dropped")
        if metastore.inner._store.version(ledger_key_path(ledger_id)) is not None:
            world.violated("B6", f"ledger {ledger_id} exists, and a bookie drops it")

    network.on_answer = on_answer
    network.on_send = on_send
    metastore.on_put = write_quorums.changing
    if repairs is not None:
        metastore.on_change = repairs.last_copies.changing
        repairs.watch_copies()
    for disk in disks.values():
        disk.on_drop = on_drop


def _deafen_leader(weather: Weather, jobs: Jobs) -> None:
    """The leader has answered a committer, and hears late that its change was written."""
    weather.deafen(jobs.leader)


def _stored(metastore: MetastoreServer, ledger_id: int) -> LedgerMetadata | None:
    """A ledger's record as it is now; None if there is none."""
    key = ledger_key_path(ledger_id)
    store = metastore.inner._store
    return None if store.version(key) is None else decode_ledger(key, store.get(key).value)


def _fragment_start(metastore: MetastoreServer, ledger_id: int) -> int:
    """Where the last fragment of a ledger begins, as its metadata says now."""
    metadata = _stored(metastore, ledger_id)
    return 0 if metadata is None else metadata.last_fragment.first_entry_id


async def _storm(
    world: JudgedWorld,
    cast: Cast,
    weather: Weather,
    workload: Workload,
    jobs: Jobs | None,
    repairs: Repairs | None,
    terms: Terms | None,
    repeats: Repeats | None,
    keeping: Keeping | None,
) -> None:
    """Everybody acts while the weather is bad, then comes to an end."""
    async with trio.open_nursery() as nursery:
        usual = {
            "leader": workload.lead,
            "archive": workload.archivist,
            "follower": workload.follow,
            "reader": workload.read,
            "writer": workload.write_ledger,
            "recovery": workload.recover_ledgers,
            "looker": workload.read_ledgers,
            "brief": workload.short_lived.write,
            "deleter": workload.short_lived.delete,
            "brief reader": workload.short_lived.read,
            "intruder": workload.intrude,
        }
        for role, count in cast.roles.items() if weather.strategy != REQUESTS else ():
            for _ in range(count):
                nursery.start_soon(workload.play, role, usual[role])
        if jobs is not None:
            for role, act in (
                ("job", jobs.commit),
                ("job", jobs.commit),
                ("sweeper", jobs.sweep),
                ("jobs' leader", jobs.lead),
            ):
                nursery.start_soon(workload.play, role, act)
        acts = [*(repeats.acts if repeats is not None else ()), *(keeping.acts if keeping is not None else ())]
        for role, act in acts:
            nursery.start_soon(workload.play, role, act)
        if repairs is not None:
            nursery.start_soon(repairs.replace, lambda: workload.is_stopping)
            for role, act in (("repairer", repairs.repair), ("repairer", repairs.repair), ("drainer", repairs.drain)):
                nursery.start_soon(workload.play, role, act)
        if terms is not None:
            for role, act in (
                ("term's writer", terms.write),
                ("term's writer", terms.write),
                ("term's follower", terms.follow),
                ("term's reader", terms.look),
                ("trimmer", terms.trim),
                ("mender", terms.mend),
            ):
                nursery.start_soon(workload.play, role, act)
        nursery.cancel_scope.deadline = trio.current_time() + cast.storm_s + _ENDING_MAX_S
        await weather.run(cast.storm_s)
        workload.is_stopping = True
        world.tell("weather", "is calm")
        nursery.cancel_scope.deadline = trio.current_time() + _ENDING_MAX_S
    if nursery.cancel_scope.cancelled_caught:
        world.violated("W6", f"somebody did not end within {_ENDING_MAX_S} s of calm")


async def _judge(world: JudgedWorld, calm: _Calm) -> None:
    """In the calm nothing may fail, or take long."""
    problems: list[str] = []
    with trio.move_on_after(_CALM_MAX_S + (120 if calm.is_long else 0)) as scope:
        try:
            await calm.judge()
        except* NAMED as group:
            problems += [f"in the calm, {type(error).__name__}: {error}" for error in leaves(group)]
    if scope.cancelled_caught:
        problems.append(f"in the calm not everything worked again within {_CALM_MAX_S} s")
    for problem in problems:
        world.violated("W6", problem)


class _Calm:
    """After the storm: everything works, and what is there is what must be."""

    def __init__(
        self,
        world: JudgedWorld,
        clients: Clients,
        workload: Workload,
        bookies: list[BookieHost],
        jobs: Jobs | None,
        losses: Losses | None,
        write_quorums: WriteQuorums,
        repairs: Repairs | None,
        terms: Terms | None,
        repeats: Repeats | None,
        keeping: Keeping | None,
    ) -> None:
        self._terms = terms
        self._keeping = keeping
        self._repeats = repeats
        self._write_quorums = write_quorums
        self._repairs = repairs
        self._jobs = jobs
        self._losses = losses
        self._world = world
        self._clients = clients
        self._workload = workload
        self._bookies = bookies

    @property
    def is_long(self) -> bool:
        """True if entries have to grow old in it."""
        return self._keeping is not None

    async def judge(self) -> None:
        """Uses everything once more, and compares."""
        for bookie in self._bookies:
            await bookie.start()
        if self._losses is not None:
            await self._losses.forget_in_calm()
            await self._losses.check_refused()
        await trio.sleep(_SETTLING_S)
        async with self._clients.client("judge") as (client, _):
            await self._judge_log(client)
            await self._judge_ledgers(client)
            if self._terms is not None:
                await self._terms.judge(client)
            await self._judge_write_quorums(client)
            if self._repairs is not None:
                await self._repairs.judge(client)
                await self._judge_ledgers(client)
                await self._judge_end_of_log(client)
            if self._jobs is not None:
                await self._jobs.judge(client)
            if self._repeats is not None:
                await self._repeats.judge(client)
            if self._keeping is not None:
                await self._keeping.judge(client)
            await self._judge_what_is_left(client)
        if self._losses is not None:
            await self._losses.check_healed()

    async def _judge_log(self, client: Client) -> None:
        oracle, archive = self._workload.log, self._workload.archive
        async with client.write_log(LOG) as log:
            leader = oracle.serving(log.segment)
            end = await log.append(b"end#0")
            leader.confirmed(end, b"end#0", called_when_deposed=False)
            async with client.read_log(LOG, after=archive[-1] if archive else None, follow=True) as reader:
                while not archive or archive[-1] < end:
                    record = await reader.receive()
                    oracle.read(archive, record.position, record.data)
        oracle.judge([(position, oracle.seen[position]) for position in archive])
        await self._judge_end_of_log(client)

    async def _judge_end_of_log(self, client: Client) -> None:
        """Whether what the log still has is the end of what was read all along."""
        oracle, archive = self._workload.log, self._workload.archive
        history = [(position, oracle.seen[position]) for position in archive]
        async with client.read_log(LOG) as reader:
            final = [(record.position, record.data) async for record in reader]
        if not final or final != history[-len(final) :]:
            self._world.violated("L6", "what is read in the end is not the end of what was read all along")

    async def _judge_ledgers(self, client: Client) -> None:
        for oracle in self._workload.ledgers:
            metadata = await client.recover_ledger(oracle.ledger_id, password=PASSWORD)
            assert metadata.last_entry_id is not None
            oracle.closed(metadata.last_entry_id)
            async with client.open_ledger(oracle.ledger_id, password=PASSWORD) as reader:
                oracle.judge([entry.data async for entry in reader])

    async def _judge_write_quorums(self, client: Client) -> None:
        """Whether all entries are where they must be (W7)."""
        for ledger_id in await client.ledgers():
            self._write_quorums.judge(await client.ledger_metadata(ledger_id))

    async def _judge_what_is_left(self, client: Client) -> None:
        """Which ledgers there are, and what bookies keep of others."""
        for name in (LOG, SHORT_LIVED_LOG):
            await client.jobs.sweep(name)
        known = {oracle.ledger_id for oracle in self._workload.ledgers}
        if self._terms is not None and self._terms.ledger_id is not None:
            known.add(self._terms.ledger_id)
        for name in await client.logs():
            known.update(segment.ledger_id for segment in await client.log_segments(name))
        for ledger_id in await client.ledgers():
            if ledger_id not in known:
                await self._judge_leak(client, ledger_id)
        for oracle in self._workload.ledgers[::2]:
            await client.delete_ledger(oracle.ledger_id)
        try:
            await client.delete_log(SHORT_LIVED_LOG)
        except LogNotFoundError:
            self._world.count("short-lived log was gone")
        existing = set(await client.ledgers())
        living = [bookie for bookie in self._bookies if not bookie.is_gone]
        for _ in range(2):  # a request under way may come after the first pass, and bring a ledger back
            await trio.sleep(_UNDER_WAY_S)
            for bookie in living:
                assert bookie.served is not None
                await bookie.served.collect_garbage()
        for bookie in living:
            kept = [ledger_id for ledger_id in bookie.disk.ledger_ids() if ledger_id not in existing]
            if kept:
                self._world.violated("B6", f"{bookie.name} keeps deleted ledgers: {kept}")

    async def _judge_leak(self, client: Client, ledger_id: int) -> None:
        """A ledger that no log names: it isn't a leader's, of which nothing is left whatever happened (L7). Its creator
        must have been cancelled or killed, or have failed."""
        metadata, _ = await client._opened.ledgers.records.get(ledger_id)
        if LOG_KEY in metadata.custom and JOB_KEY not in metadata.custom:
            self._world.violated(
                "L7", f"ledger {ledger_id} was made for log {metadata.custom[LOG_KEY]!r}, and is left over"
            )
        process = metadata.custom.get("process", "")
        has_failed = self._workload.trims_failed or self._workload.short_lived.deletion_failed
        if process not in self._workload.unclean and process and not has_failed:
            self._world.violated("L1", f"ledger {ledger_id} of {process}, which ended well, is named by no log")
        self._world.count("ledger left behind")


def simulate_shells(
    seed: int, transcript: list[str] | None = None, strategy: str | None = None, *, swarm: bool = False
) -> ShellResult:
    """Runs a seed; with `transcript`, writes down all that happens. `strategy` is one of `STRATEGIES`, in place of what
    the seed says; with `swarm`, only a drawn part of the cast acts. Not to be called inside of a trio run."""
    one = _Run(seed, transcript, strategy, swarm=swarm)
    small = {TERMS: small_chunks, REPEATS: small_windows}.get(strategy or "", nullcontext)
    with small():
        ended = outcome.capture(run, seed, one.main)
    world = one.world
    assert world is not None
    if isinstance(ended, outcome.Error):
        if not isinstance(ended.error, Exception):
            raise ended.error
        if transcript is not None:
            transcript += "".join(traceback.format_exception(ended.error)).splitlines()
        world.violations.append(Violation("bug", f"{type(ended.error).__name__}: {ended.error!r}"))
    violation = world.violations[0] if world.violations else None
    return ShellResult(seed, one.strategy, violation, world.digest, one.steps, world.coverage)
