"""Bookies, writers and a reader, each a process; and what is known of them while they are made to fail."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import trio

import replog
from replog.metastores.quorum.metastore import QuorumMetastore
from replog.protocol.model import LedgerState, Position
from replog.registry import Registry
from replog.testing import History, TcpProxy, check_history, read_histories, serve_proxy
from replog.testing.history import Event, latencies_s, parse_event, quantile
from tests.failures.actors import Config
from tests.failures.namespaces import Host
from tests.failures.options import CLIENT, GOOD_P99_S, LOG, MARGIN_S, METASTORE, STORAGE, TCP
from tests.failures.processes import Process, Starter, starting, until
from tests.servers.processes import free_port

BOOKIES = 5
HOST = "127.0.0.1"
READER_LAGS_S = 2 * CLIENT.follow_wait_s + CLIENT.read_timeout_s + CLIENT.connect_timeout_s + MARGIN_S


CONFIRMING_S = 10.0  # for a few hundred appends, on a busy machine
STATUS_S = 2.0  # for the answers of those that run
LEADS_S = 60.0  # until a metastore has a leader, on a busy machine
RECENT_MIN = 20  # appends in a second, so that their p99 says something


def reading_pauses_s(events: Sequence[Event]) -> list[float]:
    """How long each reader read nothing while there was an append to read, before each that it read; ascending.

    Not how late it read them: entries that are appended faster than a busy machine reads them are read later and later."""
    confirmed = {event.position: event.at_s for event in events if event.kind == "confirmed"}
    last_s: dict[str, float] = {}
    pauses: list[float] = []
    for event in sorted(events, key=lambda event: event.at_s):
        reader = event.actor.partition(".")[0]
        if event.kind == "reading":
            last_s.setdefault(reader, event.at_s)
        elif event.kind == "saw" and event.position in confirmed:
            pauses.append(max(0.0, event.at_s - max(last_s[reader], confirmed[event.position])))
            last_s[reader] = event.at_s
    return sorted(pauses)


@attrs.define
class Bookie:
    """One bookie: the same data and the same address, however often its process dies."""

    number: int
    directory: Path
    listen: str
    advertise: str = ""
    prefix: Sequence[str] = ()  # before its command
    proxy: TcpProxy | None = None
    process: Process | None = None
    bookie_id: str = ""

    @property
    def address(self) -> str:
        """Where others find it."""
        return self.advertise or self.listen

    @property
    def running(self) -> Process:
        assert self.process is not None
        return self.process


class Watch:
    """Histories that are being written, read on from where they were read before; in no order among each other."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._offsets: dict[Path, int] = {}
        self._events: list[Event] = []

    def events(self) -> list[Event]:
        for path in self._paths:
            if path.exists():
                with path.open("rb") as file:
                    file.seek(self._offsets.get(path, 0))
                    *lines, rest = file.read().split(b"\n")
                    self._offsets[path] = file.tell() - len(rest)
                    self._events += map(parse_event, lines)
        return self._events


class Cluster:
    """Made by `cluster`."""

    def __init__(
        self, directory: Path, starter: Starter, client: replog.Client, metastore: str, hosts: Sequence[Host]
    ) -> None:
        self.directory = directory
        self.starter = starter
        self.client = client
        self.metastore = metastore
        self.hosts = hosts  # one for each bookie, one for writers, one for readers; or none
        self.bookies: list[Bookie] = []
        self.writers: list[Process] = []
        self.readers: list[Process] = []
        self._histories: list[Path] = []
        self._watch = Watch(self._histories)
        self._faults = History(self._history_of("faults"), "faults")

    @property
    def writers_host(self) -> Host:
        """Where writers run, and who reads in the end."""
        return self.hosts[BOOKIES]

    def _prefix(self, place: int) -> Sequence[str]:
        return self.hosts[place].prefix if self.hosts else ()

    # -- processes --------------------------------------------------------------------------------------------------

    async def start_bookie(self, bookie: Bookie) -> None:
        """Starts its process, and waits until it serves."""
        command = ["replog.cli", "bookie", "--log-format", "json", *self._metadata_for(bookie)]
        command += ["--data", str(bookie.directory), "--storage", STORAGE, "--listen", bookie.listen]
        command += ["--advertise", bookie.advertise] if bookie.advertise else []
        for name, value in TCP.items():
            command += ["--set", f"tcp.{name}={value}"]
        bookie.process = await self.starter.run(f"bookie-{bookie.number}", command, bookie.prefix)
        bookie.bookie_id = (await bookie.process.says("listen"))["bookie"]

    def _metadata_for(self, bookie: Bookie) -> list[str]:
        """The first bookies keep a metastore among themselves, if it is one of that kind."""
        place, _, options = self.metastore.removeprefix("quorum:").partition("?")
        addresses = place.split(",")
        if not self.metastore.startswith("quorum:") or bookie.address not in addresses:
            return ["--metastore", self.metastore]
        return ["--peers", place, "--metastore", f"quorum:?{options}"]

    async def start_writer(self, name: str) -> Process:
        """A writer that has taken over."""
        config = Config(self.metastore, str(self._history_of(name)), name)
        process = await self.starter.start("writer", name, config, self._prefix(BOOKIES))
        self.writers.append(process)
        await process.says("serves")
        return process

    async def start_reader(self, name: str) -> Process:
        """A reader that follows from the beginning."""
        config = Config(self.metastore, str(self._history_of(name)), name)
        process = await self.starter.start("reader", name, config, self._prefix(BOOKIES + 1))
        self.readers.append(process)
        await process.says("reads")
        return process

    def _history_of(self, name: str) -> Path:
        path = self.directory / f"{name}.history"
        self._histories.append(path)
        return path

    # -- looking ----------------------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """All that was recorded so far."""
        return self._watch.events()

    def note(self, fault: str) -> float:
        """Writes down that this is done now; returns the time, of the monotonic clock."""
        self._faults.note(fault)
        return time.monotonic()

    async def ensemble(self) -> list[Bookie]:
        """The bookies that the log is written to now."""
        log = await self.client.log_metadata(LOG)
        ledger = await self.client.ledger_metadata(log.segments[-1].ledger_id)
        by_id = {bookie.bookie_id: bookie for bookie in self.bookies}
        return [by_id[bookie_id] for bookie_id in ledger.last_fragment.ensemble]

    async def spare(self) -> list[Bookie]:
        """The running bookies that it is not written to."""
        ensemble = await self.ensemble()
        return [bookie for bookie in self.bookies if bookie not in ensemble and bookie.running.is_running]

    async def metastore_leader(self, within_s: float = LEADS_S) -> Bookie:
        """The bookie that leads the metastore which they keep."""
        metastore = Registry().open_metastore(self.metastore)
        assert isinstance(metastore, QuorumMetastore)
        by_address = {bookie.address: bookie for bookie in self.bookies}
        try:
            with trio.fail_after(within_s):
                while True:
                    leading = [each for each in await metastore.status(STATUS_S) if each.get("role") == "leader"]
                    if leading:
                        return by_address[max(leading, key=lambda each: int(each["term"]))["address"]]
        finally:
            with trio.CancelScope(shield=True):
                await metastore.aclose()

    async def replaced(self, failed: Sequence[Bookie], within_s: float) -> float:
        """Waits until the ensemble is without these; returns how long it took."""
        started_s = time.monotonic()
        wanted = {bookie.number for bookie in failed}
        while found := wanted & {bookie.number for bookie in await self.ensemble()}:
            took_s = time.monotonic() - started_s
            assert took_s < within_s, f"bookies {sorted(found)} were not replaced within {within_s:.1f} s"
            await trio.sleep(0.02)
        return time.monotonic() - started_s

    async def confirms(self, appends: int, within_s: float) -> None:
        """Waits until so many more appends, which begin from now on, are confirmed."""
        begin_s = time.monotonic()
        await until(
            lambda: len(latencies_s(self.events(), begin_s)) >= appends, within_s, f"{appends} appends confirmed"
        )

    # -- latency ----------------------------------------------------------------------------------------------------

    async def calm_p99_s(self, appends: int = 120) -> float:
        """The p99 of so many appends, with nothing wrong."""
        begin_s = time.monotonic()
        await self.confirms(appends, CONFIRMING_S)
        return quantile(latencies_s(self.events(), begin_s), 0.99)

    async def p99_recovers(self, calm_p99_s: float, since_s: float, within_s: float) -> None:
        """Waits until the appends of the last second are as fast as with nothing wrong, by and large: all must be so some time
        after `since_s`, of the monotonic clock. A margin of ten, since others may use this machine."""
        good_s = max(10 * calm_p99_s, GOOD_P99_S)

        def is_good() -> bool:
            now_s = time.monotonic()
            found = latencies_s(self.events(), max(since_s, now_s - 1.0))
            return len(found) >= RECENT_MIN and quantile(found, 0.99) < good_s

        await until(is_good, since_s + within_s - time.monotonic(), f"p99 is below {good_s:.3f} s again")

    # -- judging ----------------------------------------------------------------------------------------------------

    async def judged(self, *, confirmed_min: int = 100) -> list[Event]:
        """Ends the writers, takes over, reads all, lets the readers come to the end, and judges the whole run."""
        for writer in self.writers:
            if writer.is_running:
                await writer.leave()
        path = self.directory / "final.json"
        config = Config(self.metastore, final=str(path))
        finisher = await self.starter.start("finisher", "finisher", config, self._prefix(BOOKIES))
        await finisher.says("finished", 60)
        final = [(Position.parse(position), payload) for position, payload in json.loads(path.read_text())]
        await self._readers_arrive(final)
        events = read_histories(self._histories)
        findings = check_history(events, final)
        assert findings == [], "\n".join(map(str, findings))
        confirmed = sum(event.kind == "confirmed" for event in events)
        assert confirmed >= confirmed_min, f"only {confirmed} appends were confirmed: nothing was tested"
        for segment in await self.client.log_segments(LOG):
            ledger = await self.client.ledger_metadata(segment.ledger_id)
            assert ledger.state is LedgerState.CLOSED
        return events

    def takeover_s(self, actor: str) -> float:
        """How long a writer took from the beginning of its takeover until it served."""
        at_s = {event.kind: event.at_s for event in self.events() if event.actor == actor}
        return at_s["served"] - at_s["takeover began"]

    async def _readers_arrive(self, final: list[tuple[Position, str]]) -> None:
        last = final[-1][0]
        for reader in self.readers:

            def arrived(name: str = reader.name) -> bool:
                seen = (each for each in self.events() if each.kind == "saw" and each.actor.startswith(f"{name}."))
                return any(each.position == last for each in seen)

            await until(arrived, READER_LAGS_S, f"{reader.name} has seen {last}, which is the end")
            await reader.leave()


@asynccontextmanager
async def cluster(
    directory: Path,
    *,
    bookies: int = BOOKIES,
    proxies: bool = False,
    hosts: Sequence[Host] = (),
    metastore: str = "",
    lease_s: float = 2.0,
) -> AsyncIterator[Cluster]:
    """A cluster of so many running bookies, behind proxies if wished, or each on a host of its own. Nothing outlives it.
    Its metastore is at the URL, or of the kind that `options` says."""
    async with AsyncExitStack() as stack:
        places = []
        for number in range(bookies):
            bookie = Bookie(number, directory / f"bookie-{number}", f"{HOST}:{free_port()}")
            if hosts:
                bookie.listen = f"{hosts[number].address}:3181"
                bookie.prefix = hosts[number].prefix
            if proxies:
                bookie.proxy = await stack.enter_async_context(serve_proxy(bookie.listen, seed=number))
                bookie.advertise = bookie.proxy.address
            places.append(bookie)
        starter = await stack.enter_async_context(starting(directory))
        metastore = metastore or f"{_metastore(directory, places)}?lease_s={lease_s}"
        client = await stack.enter_async_context(replog.connect(metastore, options=CLIENT))
        made = Cluster(directory, starter, client, metastore, hosts)
        made.bookies += places
        async with trio.open_nursery() as nursery:
            for bookie in made.bookies:
                nursery.start_soon(made.start_bookie, bookie)
        yield made


def _metastore(directory: Path, bookies: Sequence[Bookie]) -> str:
    if METASTORE == "quorum":
        return f"quorum:{','.join(each.address for each in bookies)}"
    return f"lmdb:{directory / 'metadata'}"
