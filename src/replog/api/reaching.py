"""URLs of transports and metastores, opened with a client's options; and where a process listens, as people write it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from replog.abc import Metastore, Transport
from replog.config import BackendURL, BookieOptions, ClientOptions
from replog.errors import ConfigError
from replog.registry import Registry


def opened_transports(plugins: Registry, urls: Sequence[str]) -> Callable[[str], Transport]:
    """Opens transports by their schemes: those of these URLs with their options, others with defaults. Raises `ConfigError`."""
    transports = {url.scheme: plugins.open_transport(url) for url in map(BackendURL.parse, urls)}

    def open_transport(scheme: str) -> Transport:
        return transports[scheme] if scheme in transports else plugins.open_transport(scheme)

    return open_transport


def reached_metastore(url: str | BackendURL, plugins: Registry, options: ClientOptions) -> Metastore:
    """Opens a metastore; one that is reached as bookies are, by the transports of these options. Raises `ConfigError`."""
    authenticator = plugins.open_authenticator(options.authentication)
    return plugins.open_metastore(url, opened_transports(plugins, options.transports), authenticator)


@asynccontextmanager
async def opened_metastore(url: str | BackendURL, options: ClientOptions) -> AsyncIterator[Metastore]:
    """A metastore for the block alone, as `reached_metastore` opens it."""
    metastore = reached_metastore(url, Registry(), options)
    try:
        yield metastore
    finally:
        await close_metastore(metastore)


async def close_metastore(metastore: Metastore) -> None:
    """Closes it, even if the task is cancelled; gives up after some seconds."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
        await metastore.aclose()


def with_listener(
    options: BookieOptions, listen: str | None, advertise: str | None, plugins: Registry
) -> BookieOptions:
    """The options with one more listener, first: `listen` is HOST:PORT, or the URL of a transport. Raises `ConfigError`."""
    if listen is None:
        if advertise is not None:
            raise ConfigError(f"advertise={advertise!r} without listen: it says how others reach that")
        return options
    url = listening_url(listen, plugins)
    if advertise is not None:
        url = attrs.evolve(url, options={**url.options, "advertise": advertise})
    return attrs.evolve(options, listen=(url.with_secrets(), *options.listen))


def listening_url(text: str, plugins: Registry) -> BackendURL:
    """HOST:PORT is TCP's. It looks like a URL too: one of those begins with what is the scheme of a transport."""
    schemes = {
        offer.split()[1] for each in plugins.plugins() for offer in each.offers if offer.startswith("transport ")
    }
    if text.partition(":")[0] in schemes:
        return BackendURL.parse(text)
    address, _, options = text.partition("?")
    return attrs.evolve(BackendURL.parse(f"tcp:?{options}" if options else "tcp:"), rest=address)
