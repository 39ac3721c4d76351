"""The bookies of a BookKeeper cluster, as they register themselves."""

from __future__ import annotations

from collections.abc import Collection

import attrs
from google.protobuf.message import DecodeError

from replog.abc import Metastore
from replog.client.membership import Membership
from replog.config.client import ClientTuning
from replog.errors import BookieUnreachableError, ConfigError
from replog.records.bookies import BookieAddress, Cookie, Endpoint
from replog.runtime.host_ports import parse_address
from replog.runtime.loggers import logger
from replog_bookkeeper.schema import data

SCHEME = "bookkeeper"  # of the endpoints that this client makes of a bookie's
AVAILABLE, READ_ONLY, COOKIES = "available", "readonly", "cookies"
PROTOCOL = "bookie-rpc"

_log = logger("replog.bookkeeper")


@attrs.frozen
class Bookie:
    """One bookie: `address` is HOST:PORT, or None if it is not announced."""

    bookie_id: str
    address: str | None
    is_read_only: bool = False
    takes_tls: bool = False


def decode_bookie(bookie_id: str, value: bytes, *, read_only: bool) -> Bookie:
    """The registration of a bookie: an empty one is of an old version, whose id is its address. Raises `ValueError`."""
    if not value:
        return Bookie(bookie_id, _checked(bookie_id), read_only)
    try:
        info = data["BookieServiceInfoFormat"].FromString(value)
    except DecodeError as error:
        raise ValueError(f"{value[:60]!r}: {error}") from error
    for endpoint in info.endpoints:
        if endpoint.protocol == PROTOCOL:
            return Bookie(bookie_id, f"{endpoint.host}:{endpoint.port}", read_only, "tls" in endpoint.extensions)
    return Bookie(bookie_id, _checked(bookie_id), read_only)


def _checked(address: str) -> str:
    try:
        _, port = parse_address(address)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    if not address.endswith(f":{port}"):
        raise ValueError(f"{address!r} is not HOST:PORT")
    return address


class BookKeeperMembership(Membership):
    """The bookies that a client may use: those below `available`. BookKeeper knows neither draining nor lost ones."""

    def __init__(self, root: Metastore, options: ClientTuning) -> None:
        super().__init__(root, options)
        self._root = root
        self._warned: dict[str, bytes] = {}

    async def bookies(self) -> list[Bookie]:
        """All bookies that are announced, by their ids. A damaged registration is left out, with a warning."""
        found: dict[str, Bookie] = {}
        # Read-only ones first, and again where one may have changed meanwhile: it appears under the new key before it leaves
        # the old one, so a bookie that changes is seen at least once.
        read_only = await self._root.announced(f"{AVAILABLE}/{READ_ONLY}")
        writable = await self._root.announced(AVAILABLE)
        writable.pop(READ_ONLY, None)
        if not self.announced_ids <= writable.keys() | read_only.keys():
            read_only = {**read_only, **await self._root.announced(f"{AVAILABLE}/{READ_ONLY}")}
        self.announced_ids = frozenset(writable) | frozenset(read_only)
        self.seen_ids |= self.announced_ids
        for bookie_id in sorted(self.announced_ids):
            is_read_only = bookie_id in read_only
            value = read_only[bookie_id] if is_read_only else writable[bookie_id]
            try:
                found[bookie_id] = decode_bookie(bookie_id, value, read_only=is_read_only)
            except ValueError as error:
                if self._warned.get(bookie_id) != value:  # once: a client looks again and again
                    self._warned[bookie_id] = value
                    _log.warning("bookie %s is not used: its registration is damaged: %s", bookie_id, error)
        return list(found.values())

    async def announced(self) -> dict[str, BookieAddress]:
        """All announced bookies, sorted by id. Raises `MetastoreError`."""
        found = {each.bookie_id: _address(each) for each in await self.bookies()}
        self.known.announced(found)
        return found

    async def address(self, bookie_id: str) -> BookieAddress:
        """The address of a bookie; of one that is not announced only if its id is one. Raises `BookieUnreachableError`."""
        announced = await self.announced()
        if bookie_id in announced:
            return announced[bookie_id]
        try:
            return _address(Bookie(bookie_id, _checked(bookie_id)))
        except ValueError:
            raise BookieUnreachableError(bookie_id, "it is not registered: it is down, or elsewhere") from None

    async def draining_ids(self) -> set[str]:
        """None: BookKeeper's bookies do not drain."""
        return set()

    async def known_ids(self) -> list[str]:
        """None: an ensemble of BookKeeper's names bookies that are there, since Java's clients rely on that."""
        return []

    async def cookie(self, bookie_id: str) -> Cookie | None:
        """None: BookKeeper's cookies say nothing that a client uses, and none of them says that a bookie is lost."""
        return None

    async def cookie_ids(self) -> Collection[str]:
        """The ids of all bookies that ever were, present or away; sorted. Raises `MetastoreError`."""
        return await self._root.children(COOKIES)


def _address(bookie: Bookie) -> BookieAddress:
    endpoints = () if bookie.address is None else (Endpoint(SCHEME, bookie.address),)
    return BookieAddress(endpoints, read_only=bookie.is_read_only)
