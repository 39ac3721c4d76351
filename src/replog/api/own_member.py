"""The member of a metastore in a process with `peers`: opened, listened for and begun before the process's bookie serves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from replog.abc import Metastore, Transport
from replog.bookie.serving import Way
from replog.bookie.shared_listener import SharedListener
from replog.config import BackendURL, BookieOptions, structure
from replog.errors import ConfigError
from replog.registry import Registry
from replog.runtime.host_ports import is_loopback, parse_address

if TYPE_CHECKING:
    from replog.metastores.quorum.running import RunningMember

MEMBER_DIRECTORY = "metastore"
_RESOLVING_S = 5.0  # of names, before they are resolved again to connect
_SCHEME = "quorum"


@attrs.frozen
class ProcessMember:
    """A member that runs, the metastore that it keeps with the others, the way to the bookie beside it, and where else that
    bookie is to listen."""

    member: RunningMember
    metastore: Metastore
    way: Way
    other_listeners: tuple[str, ...]


@attrs.frozen
class _Shared:
    """The listener that the member shares, its address as peers know it, and the other listeners."""

    url: BackendURL
    address: str
    others: tuple[str, ...]


def _shared(options: BookieOptions, peers: Sequence[str]) -> _Shared:
    """The one of the listeners that is among the peers. Raises `ConfigError`."""
    from replog.metastores.quorum.addresses import normalized

    named: list[_Shared] = []
    for each in options.listen:
        url = BackendURL.parse(each)
        place = url.options.get("advertise") or url.rest
        address = normalized(place if url.scheme == "tcp" else f"{url.scheme}:{place}")
        named.append(_Shared(url, address, tuple(other for other in options.listen if other is not each)))
    found = [each for each in named if each.address in peers]
    if len(found) != 1:
        listens = ", ".join(each.address for each in named) or "nowhere"
        raise ConfigError(
            f"peers={', '.join(peers)}: {len(found) or 'none'} of them is this process, which listens at {listens}: its own "
            "address is the one to listen at, or to advertise, and is among the peers once"
        )
    return found[0]


async def _check_reachable(shared: _Shared, peers: Sequence[str]) -> None:
    """Raises `ConfigError` if this process would listen where its peers can't reach it: Debian's /etc/hosts makes the name of a
    machine a loopback address there."""
    from replog.metastores.quorum.addresses import scheme_of

    if shared.url.scheme != "tcp" or "advertise" in shared.url.options:
        return
    host, port = parse_address(shared.url.rest)
    others = [scheme_of(each)[1] for each in peers if each != shared.address and scheme_of(each)[0] == "tcp"]
    with trio.move_on_after(_RESOLVING_S):
        if await is_loopback(host) and any([await is_loopback(parse_address(each)[0]) is False for each in others]):
            raise ConfigError(
                f"listen={shared.url.rest}: {host} is an address of this machine alone here, where {', '.join(others)} can't "
                f"reach it: listen at 0.0.0.0:{port}, and advertise {shared.address}"
            )


def check_no_other_metadata(metadata: Path, metastore: object) -> None:
    """Raises `ConfigError` if a metastore of LMDB is in this directory: an empty cluster must not begin beside ledgers."""
    if metadata.exists():
        raise ConfigError(
            f"{metadata} has the metadata of the ledgers here, and peers would begin an empty metastore beside it. "
            f"Without peers, or with metastore='lmdb:{metadata}', this directory works as before. To have peers keep "
            f"it: replog metastore found --from lmdb:{metadata} --data {metadata.parent} --address HOST:PORT, and move it away"
        )
    if metastore is not None and (not isinstance(metastore, str) or BackendURL.parse(metastore).scheme != _SCHEME):
        raise ConfigError(f"metastore={metastore!r} and peers: give one of them; the peers keep their own metastore")


def check_no_member(directories: Iterable[Path]) -> None:
    """Raises `ConfigError` if a member is in one of these directories: the metadata of its ledgers is where its cluster is."""
    for each in directories:
        if (each / MEMBER_DIRECTORY).is_dir():
            raise ConfigError(
                f"{each} belongs to a cluster whose processes keep the metastore together, and its ledgers are known there. "
                "Open it as before, with listen= and peers=; or name the metastore, as 'quorum:HOST:PORT', where others run"
            )


@asynccontextmanager
async def process_member(
    directory: Path,
    peers: Sequence[str],
    options: BookieOptions,
    plugins: Registry,
    *,
    bookie_id: str,
    metastore: str | None = None,
) -> AsyncIterator[ProcessMember]:
    """Runs a member in this directory while the context is open; enters once its cluster has a leader.

    `metastore` may name options and a prefix, as "quorum:/prod?lease_s=1". Raises `ConfigError`, `MetastoreError`. Waits, and
    says in the log whom for, until the other members have come."""
    # Here: processes without peers need not import it.
    from replog.metastores.quorum import QuorumOptions, QuorumPlace
    from replog.metastores.quorum.addresses import all_normalized
    from replog.metastores.quorum.running import MemberConfig, running_member

    url = BackendURL.parse(metastore or f"{_SCHEME}:")
    place, given = QuorumPlace.parse(url.rest), structure(QuorumOptions, url.options, what=str(url))
    addresses = all_normalized(peers)
    shared = _shared(options, addresses)
    await _check_reachable(shared, addresses)
    listening = plugins.open_transport(attrs.evolve(shared.url, rest=""))
    authenticator = plugins.open_authenticator(options.authentication)

    def open_transport(scheme: str) -> Transport:
        return listening if scheme == shared.url.scheme else plugins.open_transport(scheme)

    config = MemberConfig(directory / MEMBER_DIRECTORY, shared.address, addresses, observe=plugins.observe)
    async with running_member(config, open_transport, authenticator) as member:
        listener = SharedListener(listening, member.service)
        async with listener.open(shared.url.rest, bookie_id, authenticator):
            await member.begin()
            await member.led()
            kept = member.metastore(prefix=place.prefix, timeout_s=given.timeout_s, lease_s=given.lease_s)
            try:
                yield ProcessMember(member, kept, Way(shared.url.scheme, listener, shared.url.rest), shared.others)
            finally:
                await kept.aclose()
