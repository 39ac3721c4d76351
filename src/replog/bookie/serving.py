"""A bookie in this process: opens its storage, proves its identity, announces itself, serves, and collects garbage."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import trio

from replog.abc import Authenticator, Damage, Metastore, Storage, Transport
from replog.bookie.administration import Administration
from replog.bookie.announcing import Announcer
from replog.bookie.healing import Healing
from replog.bookie.identity import check_cookie, keep_doubt_bounded, settle_doubt
from replog.bookie.maintenance import Maintenance
from replog.bookie.registering import Registration
from replog.bookie.server import BookieServer
from replog.config import BackendURL, BookieOptions, parse_labels
from replog.config.bookie import BookieTuning, tuned
from replog.errors import StorageFailedError
from replog.hookspecs import Event, StorageFailed
from replog.records.bookies import Endpoint
from replog.registry import Registry
from replog.runtime.collector import no_collections
from replog.runtime.entropy import current_entropy
from replog.runtime.event_loop import current_host_loop
from replog.runtime.latencies import LatencyHistogram
from replog.runtime.nursery import open_service_nursery
from replog.runtime.threads import run_in_thread


def storage_url(storage: str, directory: str | os.PathLike[str]) -> BackendURL:
    """The URL of a storage in this directory: `storage` is a scheme, maybe with options."""
    url = BackendURL.parse(storage)
    return attrs.evolve(url, rest=str(Path(directory))) if not url.rest else url


@attrs.frozen
class Way:
    """A way to a bookie: the transport of this scheme, listening at this address."""

    scheme: str
    transport: Transport
    address: str


def ways_to(storage: Storage, registry: Registry, options: BookieOptions) -> list[Way]:
    """The ways to a bookie: first the one within this trio run, then those that its options name."""
    ways = [Way("memory", registry.open_transport("memory"), storage.bookie_id)]
    for each in options.listen:
        url = BackendURL.parse(each)
        ways.append(Way(url.scheme, registry.open_transport(attrs.evolve(url, rest="")), url.rest))
    return ways


async def labels_of(registry: Registry, options: BookieOptions) -> dict[str, str]:
    """A bookie's labels: those that plugins find, and those of its options, which come first."""
    found: list[dict[str, str]] = []
    if registry.gives_labels:
        await run_in_thread(lambda: found.append(registry.bookie_labels()))
    return {**(found[0] if found else {}), **parse_labels(options.labels)}


@asynccontextmanager
async def serving(
    storage: Storage,
    metastore: Metastore,
    ways: Sequence[Way],
    options: BookieOptions,
    observe: Callable[[Event], None],
    authenticator: Authenticator | None = None,
    labels: Mapping[str, str] | None = None,
    after_restore: bool = False,
) -> AsyncIterator[ServedBookie]:
    """Serves a storage while the context is open, and closes it on leaving, even if serving could not begin. Ways are
    announced in their order: the best one first; the labels as they are. With `after_restore`, an operator confirms that the
    metastore is right as it is (B6a).

    The order of leaving: first the bookie is no longer announced, and maintenance ends; then connections take nothing
    new, and are cut when their requests are answered; then accepted requests are durable, reads and other calls end,
    and the storage is closed, which ends a compaction or scrubbing under way. So nothing is closed under a call that
    does not expect it. If the disk does not answer for 30 seconds (at each of two waits), what is under way in
    it is left behind, and observers get an event."""
    server = BookieServer(storage, _chosen_here(options, metastore), observe)
    try:
        cookie = await check_cookie(server, metastore, after_restore=after_restore)
        await settle_doubt(server, metastore, observe)
        async with server.running(), AsyncExitStack() as stack:
            endpoints = [await _listen(stack, way, server, authenticator) for way in ways]
            async with open_service_nursery() as nursery:
                maintenance = Maintenance(server, metastore, observe, nursery)
                bookie = ServedBookie(server, maintenance, endpoints, ways)
                server.administrators.administer = Administration(bookie, maintenance).perform
                server.administrators.ledger_deleted = maintenance.hints.hear
                registration = Registration(server, metastore, labels or {})
                try:
                    await registration.begin(cookie)
                    await nursery.start(Announcer(server, metastore, endpoints, labels).run)
                    nursery.start_soon(registration.run)
                    maintenance.start()
                    nursery.start_soon(keep_doubt_bounded, server, metastore, observe)
                    if server.options.heal == "auto":
                        nursery.start_soon(Healing(server, metastore).run)
                    yield bookie
                finally:
                    maintenance.is_left = True
    finally:
        problem = await server.calls.close(server.options.close_timeout_s)
        if problem is not None:
            observe(StorageFailed(storage.bookie_id, problem))


def _chosen_here(options: BookieOptions, metastore: Metastore) -> BookieTuning:
    """The options with the constants of a bookie in this trio run, with this metastore."""
    if isinstance(options, BookieTuning):
        return options
    # Not where trio is a guest: its host's event loop never waits for a disk.
    is_inline, made = current_host_loop() is None, tuned(options)
    patience_s = max(made.announce_timeout_s, 2 * metastore.lease_s)
    return attrs.evolve(made, commit_inline_when_idle=is_inline, announce_timeout_s=patience_s)


async def _listen(
    stack: AsyncExitStack, way: Way, server: BookieServer, authenticator: Authenticator | None
) -> Endpoint:
    listening = way.transport.listen(way.address, server, bookie_id=server.bookie_id, authenticator=authenticator)
    return Endpoint(way.scheme, await stack.enter_async_context(listening))


class ServedBookie:
    """A bookie that is served in this process: one of `Client.bookies`, or yielded by `serve_bookie`.

    A bookie maintains its storage by itself. With these methods a program starts a run now: before a back-up, in a quiet hour,
    or after many ledgers were deleted. One run of a kind goes at a time; a second one waits for it."""

    def __init__(
        self,
        server: BookieServer,
        maintenance: Maintenance,
        endpoints: Sequence[Endpoint],
        ways: Sequence[Way] = (),
    ) -> None:
        self._server = server
        self.endpoints = tuple(endpoints)  #: The ways to it, as announced.
        self._maintenance = maintenance
        self._ways = tuple(ways)
        self._started_at_s = trio.current_time()
        # Of the time of day: with the storage's doubts and damage it tells audits whether the bookie may have lost something.
        self._started_on_s = current_entropy().time_ns() / 1e9
        self._beside: list[Callable[[], Mapping[str, float]]] = []

    @property
    def bookie_id(self) -> str:
        """The identity that its storage proves."""
        return self._server.bookie_id

    @property
    def failure(self) -> StorageFailedError | None:
        """Why its storage has stopped for good; None while it works."""
        return self._server.failure

    def ask_for_collection(self) -> None:
        """Asks for a collection of garbage soon, rather than at the next interval; returns at once."""
        self._maintenance.ask_for_collection()

    async def collect_garbage(self) -> list[int]:
        """Looks for deleted ledgers now, and returns those that were dropped (B6).

        Raises `MetastoreError` or `StorageError` (retry: yes; nothing that exists was dropped), `trio.ClosedResourceError` if
        the bookie is left meanwhile. If cancelled, the pass goes on; the next one waits for it."""
        return await self._maintenance.collect_garbage()

    async def confirm_metastore(self) -> None:
        """Confirms that the metastore is right as it is, although the bookie has seen a newer one: it was restored from
        a back-up, and nothing newer is left (B6a). Entries that only the lost metadata named are garbage from then on.

        Raises `MetastoreError` or `StorageError`: then the outcome is unknown, and confirming again is harmless."""
        await self._maintenance.confirm_metastore()

    async def compact(self, *, is_major: bool = False) -> None:
        """Gives back space that nothing needs, now; takes as long as it takes, and reads and writes go on. Minor: where most of
        it is gained.

        Raises `StorageFullError` if there is no room to work (nothing is lost), `StorageFailedError`,
        `trio.ClosedResourceError` if the bookie is left meanwhile. If cancelled, the run goes on; the next one waits for it."""
        await self._maintenance.compact(is_major=is_major)

    async def scrub(self) -> Sequence[Damage]:
        """Reads all that is stored and checks it against damage, now; returns all damage that is known of, old and new.

        Observers get an event for each new one (`DamageFound`). Raises `StorageFailedError`, `trio.ClosedResourceError` if the
        bookie is left meanwhile. If cancelled, the run goes on; the next one waits for it."""
        return await self._maintenance.scrub()

    def statistics(self) -> dict[str, float]:
        """Counters and gauges. Names of its transports' counters begin with the transport's scheme: `tcp_connections`.

        - State: `read_only`, `storage_failed`, `free_bytes` (if the storage knows), `used_bytes`, `damaged_batches`, `uptime_s`.
        - Requests: the counters `added_batches`, `added_entries`, `added_bytes`, `reads`, `read_bytes`, `fence_requests`,
          `recovery_reads` and `commits`; the gauges `queued_requests` and `queued_bytes` (accepted and not answered) and
          `active_ledgers` (added to in the last 10 to 20 s).
        - Garbage: `garbage_collections`, `garbage_collection_failures`, `ledgers_collected`, `released_ranges` (of entries that
          moved to other bookies), `deletion_hints` (of clients that deleted a ledger), `last_garbage_collection_s` (how long the
          last pass took), `since_garbage_collection_s` (how long ago it ended).
        - Runs that were asked for: `forced_garbage_collections`, `forced_compactions`, `forced_scrubs`; and
          `compaction_failures`, `attempts_to_make_space`."""
        uptime_s = trio.current_time() - self._started_at_s
        return {
            **self._server.statistics(),
            **self._maintenance.statistics(),
            "uptime_s": uptime_s,
            "started_at_s": self._started_on_s,
            **self._transport_statistics(),
            **{name: value for figures in self._beside for name, value in figures().items()},
        }

    def _transport_statistics(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for way in self._ways:
            for name, value in way.transport.statistics().items():
                key = f"{way.scheme}_{name}"
                found[key] = found.get(key, 0) + value
        return found

    def latencies(self) -> dict[str, LatencyHistogram]:
        """Durations since the start, in copies: `commit`, a call to the storage; `answer`, from accepting the first
        request of a commit to answering it."""
        return self._server.latencies()


def server_of(bookie: ServedBookie) -> BookieServer:
    """The server of a bookie, for what runs beside it in this process."""
    return bookie._server


def figures_beside(bookie: ServedBookie) -> list[Callable[[], Mapping[str, float]]]:
    """The figures of what runs beside a bookie. Those that are added appear in its statistics."""
    return bookie._beside


async def open_storage(registry: Registry, url: BackendURL) -> Storage:
    """Opens a storage in a worker thread. Raises `ConfigError`, `StorageError`. If cancelled, it is closed again."""
    opened: list[Storage] = []

    def open_it() -> None:
        # It makes some objects for each ledger: to search them again and again took a million ledgers from 15 s to 147 s.
        with no_collections():
            opened.append(registry.open_storage(url))

    try:
        await run_in_thread(open_it)
    except trio.Cancelled:
        for storage in opened:
            storage.close()
        raise
    return opened[0]


async def close_storage(storage: Storage) -> None:
    """Closes a storage that was never served, in a worker thread, even if the task is cancelled."""
    with trio.CancelScope(shield=True):
        await run_in_thread(storage.close)
