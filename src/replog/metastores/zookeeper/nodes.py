"""The steps of calls: making nodes together with their missing parents, and removing them together with unneeded ones."""

from __future__ import annotations

from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)

from replog.errors import KeyNotFoundError, VersionConflictError
from replog.metastores.zookeeper import requests
from replog.metastores.zookeeper.calls import Call, Failure
from replog.metastores.zookeeper.driver import Stat
from replog.metastores.zookeeper.paths import PLACEHOLDER, Paths

_WINDOW = 64  # requests that are sent in one go


def failed(answer: Any, *kinds: type[KazooException]) -> bool:
    """Whether this is a failure of one of these kinds."""
    return isinstance(answer, Failure) and isinstance(answer.error, kinds)


def good(call: Call, answer: Any) -> Any:
    """The answer. Raises `MetastoreError` if it is a failure."""
    if isinstance(answer, Failure):
        raise call.refused(answer)
    return answer


async def create_node(call: Call, paths: Paths, path: str, data: bytes, *, is_ephemeral: bool = False) -> bool:
    """Makes a node, and placeholders above it where they are missing, all or none. False if it exists."""
    while True:
        # Without looking first: the nodes above nearly always exist, and then this one request is all.
        made = await call.change(requests.create(path, data, ephemeral=is_ephemeral))
        if failed(made, NodeExistsError):
            return False
        if not failed(made, NoNodeError):
            good(call, made)
            return True
        above = paths.parents(path)
        stats = await look_at(call, above)
        nodes = [(parent, PLACEHOLDER) for parent, stat in zip(above, stats, strict=True) if stat is None]
        if not nodes:
            continue  # another client has made them meanwhile
        everything = requests.create_all([*nodes, (path, data)], ephemeral=is_ephemeral)
        # A key with very many words: its placeholders are made in several requests, which others may see half done.
        if everything.size_bytes > requests.REQUEST_BYTES_MAX:
            await make_placeholders(call, paths, f"{path}/")
            continue
        made = _first_failure(good(call, await call.change(everything)))
        if made is None:
            return True
        if not failed(made, NoNodeError, NodeExistsError):  # another client makes or removes the same nodes
            raise call.refused(made)


def _first_failure(answers: list[Any]) -> Failure | None:
    """Why a transaction failed: errors stand in its answer, those of the operations that were not at fault, too."""
    errors = [answer for answer in answers if isinstance(answer, KazooException)]
    causes = [error for error in errors if not isinstance(error, RolledBackError | RuntimeInconsistency)]
    return Failure((causes or errors)[0]) if errors else None


async def make_placeholders(call: Call, paths: Paths, path: str) -> None:
    """Makes everything above this path that is missing. Nodes that somebody removes meanwhile may be missing again."""
    above = paths.parents(path)
    for start in range(0, len(above), _WINDOW):
        wanted = [requests.create(parent, PLACEHOLDER) for parent in above[start : start + _WINDOW]]
        for made in await call.change_all(*wanted):
            if not failed(made, NodeExistsError, NoNodeError):
                good(call, made)


async def look_at(call: Call, wanted: list[str]) -> list[Stat | None]:
    """ZooKeeper's facts about these nodes."""
    found: list[Stat | None] = []
    for start in range(0, len(wanted), _WINDOW):
        asked = await call.ask(*(requests.exists(path) for path in wanted[start : start + _WINDOW]))
        found += [good(call, stat) for stat in asked]
    return found


async def read(call: Call, path: str) -> tuple[bytes, Stat] | None:
    """Data and Stat of a node, after every change that was answered before; None if there is no such key."""
    _, found = await call.ask(requests.barrier(path), requests.get(path))
    if failed(found, NoNodeError):
        return None
    data, stat = good(call, found)
    return (data, stat) if data else None


async def read_all(call: Call, directory: str, wanted: list[str]) -> list[tuple[bytes, Stat] | None]:
    """The same for many nodes."""
    found: list[tuple[bytes, Stat] | None] = []
    for start in range(0, len(wanted), _WINDOW):
        window = wanted[start : start + _WINDOW]
        _, *answers = await call.ask(requests.barrier(directory), *map(requests.get, window))
        for answer in answers:
            data, stat = (b"", None) if failed(answer, NoNodeError) else good(call, answer)
            found.append((data, stat) if data and stat is not None else None)
    return found


async def conflict(call: Call, key: str, path: str, expected: int) -> KeyNotFoundError | VersionConflictError:
    """Why a change that expected this version failed."""
    # Looked up after the change failed, so it may have changed once more: the error is about the node as it is now.
    stat = good(call, (await call.ask(requests.exists(path)))[-1])
    if stat is None or not stat.dataLength:
        return KeyNotFoundError(key, "it does not exist: nothing was written")
    return VersionConflictError(key, expected, stat.version)


async def remove_placeholders(call: Call, paths: Paths, path: str) -> None:
    """Removes what stood above this node only for its sake. Others may need it again meanwhile: then it stays."""
    # From below: a parent is empty only when its child is gone.
    for parent in reversed(paths.parents(path)):
        if not paths.is_below_chroot(parent):
            return
        stat = good(call, (await call.ask(requests.exists(parent)))[-1])
        if stat is None:
            continue
        if stat.dataLength or stat.numChildren:
            return
        removed = await call.change(requests.delete(parent, stat.version))
        if failed(removed, NotEmptyError, BadVersionError):
            return
        if not failed(removed, NoNodeError):
            good(call, removed)
