"""Bookies of one's own: served inside an application."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import trio

from replog.abc import Metastore, Storage
from replog.api.open_elsewhere import told_where
from replog.api.own_member import ProcessMember, check_no_member, check_no_other_metadata, process_member
from replog.api.reaching import close_metastore, reached_metastore
from replog.bookie.embedding import EmbeddedStorages, bookie_directories, embedded_options, embedded_quorum
from replog.bookie.serving import (
    ServedBookie,
    Way,
    close_storage,
    figures_beside,
    labels_of,
    open_storage,
    serving,
    storage_url,
    ways_to,
)
from replog.config import BackendURL, BookieOptions, ClientOptions
from replog.errors import ConfigError, StorageError, StorageInUseError
from replog.protocol.quorum import Quorum
from replog.records.bookies import COOKIES_KEY
from replog.registry import Registry
from replog.runtime.event_loop import check_event_loop

_METADATA_DIRECTORY = "metadata"
_PEERS_S = 10.0  # how long a program waits for the bookies of its peers


async def _enter_storage(stack: AsyncExitStack, plugins: Registry, storage: str, directory: Path) -> Storage:
    opened = await open_storage(plugins, storage_url(storage, directory))
    stack.push_async_callback(close_storage, opened)
    return opened


@attrs.frozen
class MetastoreChoice:
    """The metastore of a process's bookies: one that is named or open, or one that the processes at `peers` keep together; for
    embedded bookies by default LMDB beside the first one. `client` says how it is reached."""

    metastore: str | Metastore | None = None
    peers: tuple[str, ...] = ()
    client: ClientOptions = attrs.field(factory=ClientOptions)


@asynccontextmanager
async def embedded_bookies(
    directories: Sequence[Path],
    settings: BookieOptions,
    quorum: Quorum,
    choice: MetastoreChoice,
    plugins: Registry,
    *,
    after_restore: bool = False,
) -> AsyncIterator[tuple[Metastore, list[ServedBookie], Mapping[str, StorageError]]]:
    """The bookies of one process, their metastore, and the directories that are left out, as of `embed`."""
    metastore, parent = choice.metastore, directories[0].parent
    # Beside the first bookie's directory, hence the order of the directories matters: `check_known` says so.
    beside = parent / _METADATA_DIRECTORY
    if choice.peers:
        check_no_other_metadata(beside, metastore)
        if len(directories) > 1:
            raise ConfigError(f"embed: {len(directories)} bookies with peers: with peers, each process has one")
    elif metastore is None:
        check_no_member((parent, *directories))
    async with AsyncExitStack() as stack:
        # Storages that are open and not yet served. What fails in between closes them, and releases their locks.
        unserved = await stack.enter_async_context(AsyncExitStack())
        storages = EmbeddedStorages(directories, quorum, plugins, has_peers=bool(choice.peers))
        # Storages before metadata: opening takes their locks, so that two processes with the same directory meet here.
        try:
            stored = await storages.open(settings.storage, unserved)
        except StorageInUseError as error:
            raise await told_where(error, directories[0], metastore, beside, plugins) from error
        is_beside = metastore is None and not choice.peers
        if is_beside:
            choice = attrs.evolve(choice, metastore=BackendURL("lmdb", str(beside)).with_secrets())
        bookie_id = stored[0].bookie_id if stored else ""
        opened, kept = await _enter_metastore(stack, choice, parent, settings, plugins, bookie_id)
        if not after_restore:
            await storages.check_known(opened, beside if is_beside else None)
        authenticator = plugins.open_authenticator(settings.authentication)
        served = []
        for each in stored:
            ways, labels = _ways(each, plugins, settings, kept), await labels_of(plugins, settings)
            bookie = serving(
                each, opened, ways, settings, plugins.observe, authenticator, labels, after_restore=after_restore
            )
            served.append(await stack.enter_async_context(bookie))
            if kept is not None:
                figures_beside(served[-1]).append(kept.member.statistics)
        unserved.pop_all()  # from here on, each bookie closes its storage
        if choice.peers:
            await _await_peers(opened, quorum)
        yield opened, served, storages.left_out


async def _enter_metastore(
    stack: AsyncExitStack,
    choice: MetastoreChoice,
    directory: Path,
    options: BookieOptions,
    plugins: Registry,
    bookie_id: str,
) -> tuple[Metastore, ProcessMember | None]:
    """The metastore of a process's bookies, and the member of it in this process, if there is one: its files are in this
    directory."""
    metastore = choice.metastore
    if choice.peers:
        assert not isinstance(metastore, Metastore), "it was refused beside peers"
        running = process_member(directory, choice.peers, options, plugins, bookie_id=bookie_id, metastore=metastore)
        kept = await stack.enter_async_context(running)
        return kept.metastore, kept
    if isinstance(metastore, Metastore):
        return metastore, None
    assert metastore is not None, "one was named"
    opened = reached_metastore(metastore, plugins, choice.client)
    stack.push_async_callback(close_metastore, opened)
    return opened, None


async def _await_peers(metastore: Metastore, quorum: Quorum) -> None:
    """Waits for a while until there are bookies enough for a ledger: those of a cluster that begins come at the same time. Later
    they are known, and may be away (C8)."""
    with trio.move_on_after(_PEERS_S):
        while len(known := await metastore.children(COOKIES_KEY)) < quorum.ensemble:
            await metastore.wait_children_changed(COOKIES_KEY, known)


def _ways(storage: Storage, plugins: Registry, options: BookieOptions, kept: ProcessMember | None) -> list[Way]:
    """The ways to a bookie; one of them is that of the member in this process, if there is one, which listens already."""
    if kept is None:
        return ways_to(storage, plugins, options)
    return [*ways_to(storage, plugins, attrs.evolve(options, listen=kept.other_listeners)), kept.way]


async def confirm_embedded_metastore(
    directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    storage: str | None = None,
    metastore: str | Metastore | None = None,
    registry: Registry | None = None,
) -> None:
    """Confirms that the metadata of an embedded log, which no process has open, is right as it is, although its bookies
    have seen newer metadata: it was restored from a back-up, and nothing newer is left (B6a). Entries that only the
    lost metadata named are garbage from then on. Raises the errors of `embed`; confirming again is harmless."""
    directories = bookie_directories(directory, None)
    quorum, settings = embedded_quorum(len(directories)), embedded_options(storage, None)
    choice = MetastoreChoice(metastore)
    async with embedded_bookies(directories, settings, quorum, choice, registry or Registry(), after_restore=True):
        pass


@attrs.frozen(kw_only=True)
class BookieConfig:
    """The configuration of a bookie to serve.

    - `directory`: where its files are.
    - `metastore`: the URL of the metastore in which it announces itself, or an open `Metastore`.
    - `peers`: instead of it, the addresses of all processes that keep the metastore together, this one's among them, as for
      `embed`. `options.listen` has its own.
    - `options`: how it stores and serves.
    - `client`: how it calls other bookies, if its option `repair` is "auto".
    - `after_restore`: for one start only, an operator confirms that the metastore is right as it is, although the bookie has
      seen a newer one (B6a)."""

    directory: str
    metastore: str | Metastore | None = None
    peers: tuple[str, ...] = ()
    options: BookieOptions = attrs.field(factory=BookieOptions)
    client: ClientOptions = attrs.field(factory=ClientOptions)
    after_restore: bool = False


@asynccontextmanager
async def serve_bookie(config: BookieConfig, *, registry: Registry | None = None) -> AsyncIterator[ServedBookie]:
    """Serves a bookie inside this app, as a context manager that yields a `ServedBookie`, for inspection and administration.

    Clients in the same trio run reach it without a network, others where its option `listen` says. It can be given to
    `serve_metrics`. Raises as `embed` does. Leaving the context, even by cancellation, still answers accepted requests for a
    short while; acknowledged entries stay."""
    check_event_loop("serve_bookie")
    if not isinstance(config, BookieConfig):
        raise ConfigError(f"{config!r} must be a BookieConfig: it says where the bookie stores entries")
    if config.metastore is None and not config.peers:
        raise ConfigError("BookieConfig names no metastore, and no peers that keep one: give one of them")
    plugins = registry or Registry()
    options, directory = config.options, Path(config.directory)
    if config.peers:
        check_no_other_metadata(directory / _METADATA_DIRECTORY, config.metastore)
    async with AsyncExitStack() as stack:
        # As in `embed`: any failure before the storage is served closes it.
        unserved = await stack.enter_async_context(AsyncExitStack())
        # Before the metastore is reached: a directory that is in use or foreign is refused without a network.
        storage = await _enter_storage(unserved, plugins, options.storage, directory)
        choice = MetastoreChoice(config.metastore, config.peers, config.client)
        metastore, kept = await _enter_metastore(stack, choice, directory, options, plugins, storage.bookie_id)
        authenticator = plugins.open_authenticator(options.authentication)
        ways = _ways(storage, plugins, options, kept)
        labels = await labels_of(plugins, options)
        unserved.pop_all()  # from here on, the bookie closes its storage
        bookie = await stack.enter_async_context(
            serving(
                storage,
                metastore,
                ways,
                options,
                plugins.observe,
                authenticator,
                labels,
                after_restore=config.after_restore,
            )
        )
        if kept is not None:
            figures_beside(bookie).append(kept.member.statistics)
        if options.repair != "off":
            # Imported here: few bookies repair.
            from replog.api.repairs import repairing_bookie

            await stack.enter_async_context(repairing_bookie(bookie, metastore, plugins, options, config.client))
        yield bookie
