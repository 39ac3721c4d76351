"""A metastore that the cluster keeps itself: members in the bookies' processes agree on it.

    client    metastore  asking  members  questions  channels
    member    running  directory  beginning  admission  service  peers  frames  status  node  overlay  store

The protocol is `replog.protocol.consensus`; its rules are Q1 to Q20.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from replog.abc import Metastore
from replog.errors import ConfigError
from replog.hookspecs import Backend, hookimpl
from replog.metastores.options import MetastoreOptions


@attrs.frozen
class QuorumOptions(MetastoreOptions):
    """The options of the scheme `quorum`: those of `MetastoreOptions`."""


@attrs.frozen
class QuorumPlace:
    """The rest of a URL: addresses of members, and a prefix of all keys."""

    addresses: tuple[str, ...]
    prefix: str

    @staticmethod
    def parse(rest: str) -> QuorumPlace:
        """Reads "HOST:PORT,HOST:PORT/prefix". Raises `ConfigError`."""
        from replog.metastores.quorum.addresses import all_normalized
        from replog.metastores.quorum.questions import check_prefix

        listed, _, prefix = rest.partition("/")
        prefix = prefix.strip("/")
        check_prefix(prefix)
        return QuorumPlace(all_normalized(each for each in listed.split(",") if each.strip()), prefix)


@hookimpl
def replog_metastores() -> Sequence[Backend[Metastore]]:
    """Offers "quorum"."""
    return [Backend("quorum", _open, QuorumOptions, summary="kept by the bookies' processes themselves")]


def _open(rest: str, options: QuorumOptions) -> Metastore:
    # Here: most programs use another metastore, and need not import this one.
    from replog.metastores.quorum.member_calls import RemoteMembers
    from replog.metastores.quorum.metastore import QuorumMetastore

    place = QuorumPlace.parse(rest)
    if not place.addresses:
        raise ConfigError(f"quorum:{rest}: names no member; it looks like quorum:m1:3181,m2:3181,m3:3181")
    members = RemoteMembers(place.addresses)
    return QuorumMetastore(members, prefix=place.prefix, timeout_s=options.timeout_s, lease_s=options.lease_s)
