"""Bookies of one's own: served inside an application."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import trio

from replog.abc import Metastore, Storage
from replog.api.repairs import repairing_bookie
from replog.bookie.embedding import EmbeddedStorages, bookie_directories, embedded_options, embedded_quorum
from replog.bookie.serving import (
    ServedBookie,
    close_storage,
    labels_of,
    open_storage,
    serving,
    storage_url,
    ways_to,
)
from replog.config import BackendURL, BookieOptions, ClientOptions
from replog.errors import ConfigError, StorageError
from replog.protocol.quorum import Quorum
from replog.registry import Registry
from replog.runtime.event_loop import check_event_loop

_METADATA_DIRECTORY = "metadata"


async def close_metastore(metastore: Metastore) -> None:
    """Closes it, even if the task is cancelled; gives up after some seconds."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
        await metastore.aclose()


async def _enter_storage(stack: AsyncExitStack, plugins: Registry, storage: str, directory: Path) -> Storage:
    opened = await open_storage(plugins, storage_url(storage, directory))
    stack.push_async_callback(close_storage, opened)
    return opened


@asynccontextmanager
async def embedded_bookies(
    directories: Sequence[Path],
    settings: BookieOptions,
    quorum: Quorum,
    metastore: str | Metastore | None,
    plugins: Registry,
    *,
    after_restore: bool = False,
) -> AsyncIterator[tuple[Metastore, list[ServedBookie], Mapping[str, StorageError]]]:
    """The bookies of one process, their metastore, and the directories that are left out, as of `embed`."""
    async with AsyncExitStack() as stack:
        # Storages that are open and not yet served. What fails in between closes them, and releases their locks.
        unserved = await stack.enter_async_context(AsyncExitStack())
        storages = EmbeddedStorages(directories, quorum, plugins)
        # Storages before metadata: opening takes their locks, so that two processes with the same directory meet here.
        stored = await storages.open(settings.storage, unserved)
        # Beside the first bookie's directory, hence the order of the directories matters: `check_known` says so.
        default = BackendURL("lmdb", str(directories[0].parent / _METADATA_DIRECTORY))
        if isinstance(metastore, Metastore):
            opened = metastore
        else:
            opened = plugins.open_metastore(metastore or default)
            stack.push_async_callback(close_metastore, opened)
        if not after_restore:
            await storages.check_known(opened, Path(default.rest) if metastore is None else None)
        authenticator = plugins.open_authenticator(settings.authentication)
        served = []
        for each in stored:
            ways, labels = ways_to(each, plugins, settings), await labels_of(plugins, settings)
            bookie = serving(
                each, opened, ways, settings, plugins.observe, authenticator, labels, after_restore=after_restore
            )
            served.append(await stack.enter_async_context(bookie))
        unserved.pop_all()  # from here on, each bookie closes its storage
        yield opened, served, storages.left_out


async def confirm_embedded_metastore(
    directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    storage: str | None = None,
    metastore: str | Metastore | None = None,
    registry: Registry | None = None,
) -> None:
    """Says that the metadata of an embedded log, which nobody has open, is right as it is, although its bookies have seen newer
    metadata: it was restored from a back-up, and nothing newer is left (B6a). What only the lost metadata named is garbage from
    then on. Raises as `embed`; confirming again is harmless."""
    directories = bookie_directories(directory, None)
    quorum, settings = embedded_quorum(len(directories)), embedded_options(storage, None)
    async with embedded_bookies(directories, settings, quorum, metastore, registry or Registry(), after_restore=True):
        pass


@attrs.frozen(kw_only=True)
class BookieConfig:
    """A bookie to serve: where its entries are kept, and which metastore it announces itself in. `client` says how it talks with
    other bookies, if it repairs. With `after_restore`, an operator says that the metastore is right as it is, although the bookie
    has seen a newer one (B6a): for one start only."""

    directory: str
    metastore: str | Metastore
    options: BookieOptions = attrs.field(factory=BookieOptions)
    client: ClientOptions = attrs.field(factory=ClientOptions)
    after_restore: bool = False


@asynccontextmanager
async def served_bookie(config: BookieConfig, *, registry: Registry | None = None) -> AsyncIterator[ServedBookie]:
    """A bookie that is served inside this app while the context is open, as an object for inspection and administration.

    Clients in the same trio run reach it without a network, others where its option `listen` says. Raises as `embed` does.
    Leaving it, even by cancellation, still answers accepted requests for a short while; acknowledged entries stay."""
    check_event_loop("served_bookie")
    if not isinstance(config, BookieConfig):
        raise ConfigError(f"{config!r} must be a BookieConfig: it says where the bookie stores entries")
    plugins = registry or Registry()
    options = config.options
    async with AsyncExitStack() as stack:
        # As in `embed`: whatever fails before the storage is served closes it.
        unserved = await stack.enter_async_context(AsyncExitStack())
        # Before the metastore is reached: a directory that is in use or foreign is refused without a network.
        storage = await _enter_storage(unserved, plugins, options.storage, Path(config.directory))
        if isinstance(config.metastore, Metastore):
            metastore = config.metastore
        else:
            metastore = plugins.open_metastore(config.metastore)
            stack.push_async_callback(close_metastore, metastore)
        authenticator = plugins.open_authenticator(options.authentication)
        ways = ways_to(storage, plugins, options)
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
        await stack.enter_async_context(repairing_bookie(bookie, metastore, plugins, options, config.client))
        yield bookie


async def serve_bookie(
    config: BookieConfig,
    *,
    registry: Registry | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves a bookie inside this app until cancelled: `await nursery.start(replog.serve_bookie, config)` gives its id.

    Clients in the same trio run reach it without a network, others where its option `listen` says. Raises as `embed` does.
    When it is cancelled, it still answers accepted requests for a short while; acknowledged entries stay."""
    async with served_bookie(config, registry=registry) as bookie:
        task_status.started(bookie.server.bookie_id)
        await trio.sleep_forever()
