"""The way out when a majority of the members is gone for good: one that is left becomes a cluster of its own, offline.

What it lacks is lost: all that was committed after its last entry. So the member with the newest log is taken, and the new
cluster has another id: members of the old one can never mix with it, and begin again with empty directories. What it has is kept,
even if it was never committed, since nobody can tell any more. Bookies notice that the metastore went back (B6a), and drop
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import attrs

from replog.errors import MetastoreError, RemoteProtocolError
from replog.metastores.quorum.directory import MemberDirectory, named_errors, new_id
from replog.protocol.consensus.commands import decode_commands
from replog.protocol.consensus.groups import Membership
from replog.protocol.consensus.log import EntryLog, Kind, LogEntry
from replog.protocol.consensus.outbox import Write


@attrs.frozen(order=True)
class Survivor:
    """A member's directory, and how far it has what was decided. The greatest one has most."""

    last_term: int
    last_index: int
    directory: str = attrs.field(order=False)
    name: str = attrs.field(order=False)
    cluster: str = attrs.field(order=False)
    address: str = attrs.field(order=False)
    others: tuple[str, ...] = attrs.field(order=False)  # the addresses of the other members
    last_ms: int | None = attrs.field(order=False)  # the time of the last change by its leader's clock, since the epoch


def look(path: Path) -> Survivor:
    """What this directory has. Waits for the disk. Raises `MetastoreError` if it is open elsewhere, or belongs to no cluster."""
    with _opened(path) as opened:
        return _survivor(opened)


def rescue(path: Path) -> str:
    """Makes this directory's member a cluster of its own, durably, and returns the id of that. Waits for the disk. Raises
    `MetastoreError`. If it is interrupted, it can be repeated."""
    with _opened(path) as opened:
        survivor, store = _survivor(opened), opened.store
        stored, cluster = store.load(), new_id()
        # First of all: from here on nobody of the old cluster listens to it, however far the rest comes.
        store.put_cluster(cluster, None)
        members = Membership(((survivor.name,),), {survivor.name: survivor.address})
        entry = LogEntry(stored.term + 1, Kind.SETTLE, members=members)
        store.write(Write(1, stored.term + 1, None, None, stored.log.last + 1, (entry,)), {}, stored.applied)
        return cluster


@contextmanager
def _opened(path: Path) -> Iterator[MemberDirectory]:
    if not (path / "state").is_dir():
        raise MetastoreError(f"{path}: no member of a metastore has its files there; nothing was changed")
    with closing(MemberDirectory(path, new_id())) as opened, named_errors(path):
        yield opened


def _survivor(opened: MemberDirectory) -> Survivor:
    store = opened.store
    stored = store.load()
    members, name = stored.log.members, opened.name
    if not store.cluster or not members.names:
        raise MetastoreError(
            f"{opened.path}: this member has nothing of its cluster: it had just begun; nothing was changed"
        )
    return Survivor(
        stored.log.last_term,
        stored.log.last,
        str(opened.path),
        name,
        store.cluster,
        members.addresses.get(name, ""),
        tuple(address for each, address in members.addresses.items() if each != name),
        _last_ms(stored.log),
    )


def _last_ms(log: EntryLog) -> int | None:
    entries = log.entries_from(log.base.index + 1) if log.last > log.base.index else ()
    for entry in reversed(entries):
        if entry.kind is Kind.COMMANDS:
            try:
                return decode_commands(entry.body)[0]
            except RemoteProtocolError:
                return None
    return None
