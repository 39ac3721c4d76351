"""Pulsar's metadata of a topic: its ledgers, its partitions, and the positions of its subscriptions.

The record of a topic, its managed ledger, names its ledgers in their order. If it is gone, the ledgers are found by their own
records, each of which names its managed ledger, and their order is that of their ids. Nothing here asks a bookie, except for a
position that is kept in a ledger; nothing is fenced or changed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import attrs
from google.protobuf.message import DecodeError

from replog.errors import KeyNotFoundError, LedgerError, LedgerNotFoundError, MetastoreCorruptError, ReplogError
from replog_bookkeeper.client import Client
from replog_bookkeeper.pulsar.compression import expand
from replog_bookkeeper.pulsar.errors import LedgerOffloadedError, LedgerOpenError, TopicDamagedError, TopicNotFoundError
from replog_bookkeeper.pulsar.names import MANAGED_LEDGERS, Namespace, TopicName, decoded
from replog_bookkeeper.pulsar.schema import records

_COMPRESSED = b"\x47\x78"
_HEAD_BYTES = 6  # of a compressed record: these two, and the size of what describes it
_RECORD_BYTES_MAX = 64 << 20
_IN_RECORD = -1  # in place of the cursor's ledger
_BITS = 64
_COMPONENT, _MANAGED_LEDGER = "component", "pulsar/managed-ledger"  # custom entries of ledgers
_OF_TOPICS, _OF_CURSORS = "managed-ledger", "pulsar/cursor"


@attrs.frozen(order=True)
class Position:
    """An entry of a topic; entry -1 is before the first one of its ledger. Prints as Pulsar writes it: "5:7"."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


@attrs.frozen
class TopicLedger:
    """A ledger of a topic. `problem` says why it cannot be read: it is missing, or only an object store has it."""

    ledger_id: int
    state: str  #: "closed", "open" or "in recovery" as in BookKeeper; "offloaded", "missing", "damaged".
    entries: int | None = None  #: As far as a record says.
    size_bytes: int | None = None
    closed_at_ms: int | None = None
    offloaded_to: str | None = None  #: The driver of the object store that has a copy.
    problem: ReplogError | None = None

    @property
    def is_open(self) -> bool:
        """True if more of it may be confirmed than readers know: a broker writes it, or none closed it."""
        return self.state in ("open", "in recovery")


@attrs.frozen
class Topic:
    """A topic and its ledgers, in their order."""

    name: TopicName
    ledgers: tuple[TopicLedger, ...]
    is_record_lost: bool = False  #: Its ledgers were found by their own records, which name the topic.
    terminated_at: Position | None = None  #: The last entry of a topic that takes no more.
    properties: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class Subscription:
    """A subscription's position. `problem` says why it is older than it was, or not known."""

    name: str
    acknowledged: Position | None  #: This entry and all before it.
    #: Ranges after it, each from after an entry to another.
    also_acknowledged: tuple[tuple[Position, Position], ...] = ()
    partly_acknowledged: tuple[Position, ...] = ()  #: Batches of which only some messages are.
    properties: Mapping[str, str] = attrs.field(factory=dict)
    problem: ReplogError | None = None


async def list_topics(client: Client, namespace: Namespace) -> list[TopicName]:
    """The topics of a namespace that have a record; of a partitioned topic its partitions. Raises `MetastoreError`."""
    return [TopicName.of_node(namespace, each) for each in await client.node_names(namespace.node)]


async def list_partitions(client: Client, name: TopicName) -> list[TopicName]:
    """The partitions of a topic; none if it is not partitioned. Raises `MetastoreError`, `TopicDamagedError`."""
    try:
        value = await client.node(name.partitioned_node)
    except KeyNotFoundError:
        return await _partitions_with_records(client, name)
    try:
        return [name.partition(each) for each in range(int(json.loads(value)["partitions"]))]
    except (ValueError, KeyError, TypeError) as error:
        raise TopicDamagedError(f"{name}: {value[:100]!r} does not say how many partitions it has") from error


async def _partitions_with_records(client: Client, name: TopicName) -> list[TopicName]:
    """The partitions that have a record, of a topic that has none itself: a namespace may have very many topics to list."""
    try:
        await client.node(name.node)
    except KeyNotFoundError:
        found = [each.partition_of for each in await list_topics(client, name.namespace)]
        numbers = sorted(number for of, number in filter(None, found) if of == name.topic)
        return [name.partition(each) for each in numbers]
    return []


async def describe_topic(client: Client, name: TopicName) -> Topic:
    """A topic and its ledgers. If its record is gone, the records of all ledgers are read, which can take minutes.

    Raises `TopicNotFoundError`, `TopicDamagedError`, `MetastoreError`."""
    try:
        value = await client.node(name.node)
    except KeyNotFoundError as error:
        ledgers = [each async for each in _ledgers_naming(client, name)]
        if all(each.problem for each in ledgers):
            raise await _not_found(client, name) from error
        return Topic(name, tuple(ledgers), is_record_lost=True)
    info = decode_record(str(name), "ManagedLedgerInfo", value)
    end = info.terminatedPosition if info.HasField("terminatedPosition") else None
    return Topic(
        name,
        tuple([await _ledger(client, each) for each in info.ledgerInfo]),
        terminated_at=None if end is None else Position(end.ledgerId, end.entryId),
        properties=_properties(info.properties),
    )


async def list_subscriptions(client: Client, name: TopicName, *, password: bytes = b"") -> list[Subscription]:
    """The subscriptions of a topic, by name. `password` is that of the ledgers in which their positions are.

    Raises `MetastoreError`. The `problem` of a subscription says what is not known of it."""
    found = []
    for node_name in await client.node_names(name.node):
        cursor = decoded(node_name)
        try:
            info = decode_record(cursor, "ManagedCursorInfo", await client.node(f"{name.node}/{node_name}"))
        except TopicDamagedError as error:
            found.append(Subscription(cursor, None, problem=error))
            continue
        except KeyNotFoundError:
            continue  # it was deleted just now
        found.append(await _subscription(client, cursor, info, password))
    return found


# -- ledgers ------------------------------------------------------------------------------------------------------


async def _ledger(client: Client, info: Any) -> TopicLedger:
    offload = info.offloadContext
    store = (offload.driverMetadata.name or "an object store") if offload.complete else None
    found = await _as_stored(client, info.ledgerId)
    if info.HasField("entries") and info.timestamp:  # what is still written has none
        found = attrs.evolve(found, entries=info.entries, size_bytes=info.size, closed_at_ms=info.timestamp)
    if store is not None and (offload.bookkeeperDeleted or found.state == "missing"):
        problem = LedgerOffloadedError(info.ledgerId, f"Pulsar moved it to {store}, and deleted it in BookKeeper")
        found = attrs.evolve(found, state="offloaded", problem=problem)
    return attrs.evolve(found, offloaded_to=store)


async def _as_stored(client: Client, ledger_id: int) -> TopicLedger:
    """A ledger as BookKeeper's record says."""
    try:
        metadata = await client.ledger_metadata(ledger_id)
    except LedgerNotFoundError:
        problem = "it has no record: its entries are lost, unless a back-up of it exists"
        return TopicLedger(ledger_id, "missing", problem=LedgerNotFoundError(ledger_id, problem))
    except MetastoreCorruptError as error:
        return TopicLedger(ledger_id, "damaged", problem=error)
    last, contents = metadata.last_entry_id, metadata.contents
    size_bytes = None if contents is None else contents.size_bytes
    return TopicLedger(ledger_id, metadata.state.value, None if last is None else last + 1, size_bytes)


async def _ledgers_naming(client: Client, name: TopicName) -> AsyncIterator[TopicLedger]:
    """The ledgers whose records name this topic, and are not those of a subscription's positions. With them come ledgers whose
    records are damaged: these may be of this topic."""
    for ledger_id in await client.ledgers():
        try:
            custom = (await client.ledger_metadata(ledger_id)).custom
        except LedgerNotFoundError:
            continue  # deleted just now
        except MetastoreCorruptError as error:
            yield TopicLedger(ledger_id, "damaged", problem=error)
            continue
        is_of_topic = custom.get(_COMPONENT, _OF_TOPICS) == _OF_TOPICS and _OF_CURSORS not in custom
        if is_of_topic and custom.get(_MANAGED_LEDGER) == name.managed_ledger:
            yield await _as_stored(client, ledger_id)


async def _not_found(client: Client, name: TopicName) -> TopicNotFoundError:
    partitions = await list_partitions(client, name)
    if partitions:
        problem = f"{name} has {len(partitions)} partitions, each of which is a topic: {partitions[0]}, ..."
        return TopicNotFoundError(problem)
    problem = f"{name}: there is no {MANAGED_LEDGERS}/{name.managed_ledger}, and no ledger whose record names it"
    return TopicNotFoundError(f"{problem}. Is it the right topic, and the metadata of its cluster?")


# -- subscriptions ------------------------------------------------------------------------------------------------


async def _subscription(client: Client, name: str, info: Any, password: bytes) -> Subscription:
    found = Subscription(name, None, properties=_properties(info.cursorProperties))
    if info.HasField("markDeleteLedgerId"):  # else its positions were never in the record
        acknowledged = Position(info.markDeleteLedgerId, info.markDeleteEntryId)
        found = attrs.evolve(found, acknowledged=acknowledged, **_more(info))
    if info.cursorsLedgerId == _IN_RECORD:
        return found
    try:
        return await _in_ledger(client, found, info.cursorsLedgerId, password)
    except (LedgerError, MetastoreCorruptError, TopicDamagedError) as error:
        return attrs.evolve(found, problem=error)


async def _in_ledger(client: Client, found: Subscription, ledger_id: int, password: bytes) -> Subscription:
    """A subscription as the last entry of its ledger says."""
    async with client.open_ledger(ledger_id, password=password) as reader:
        if not reader.is_closed:
            problem = "it is open: a later position may be in it; recover it, if no broker uses it any more"
            found = attrs.evolve(found, problem=LedgerOpenError(ledger_id, problem))
        last = reader.last_add_confirmed
        if last < 0:
            return found
        (data,) = await reader.read(last, last)
    message = _parsed(f"subscription {found.name}, ledger {ledger_id}, entry {last}", "PositionInfo", data)
    more = _more(message)
    more["also_acknowledged"] += tuple(bit_ranges(message.individualDeletedMessageRanges))
    return attrs.evolve(found, acknowledged=Position(message.ledgerId, message.entryId), **more)


def _more(info: Any) -> dict[str, Any]:
    ranges = ((each.lowerEndpoint, each.upperEndpoint) for each in info.individualDeletedMessages)
    batches = (each.position for each in info.batchedEntryDeletionIndexInfo)
    return {
        "also_acknowledged": tuple((_position(lower), _position(upper)) for lower, upper in ranges),
        "partly_acknowledged": tuple(map(_position, batches)),
    }


def bit_ranges(ledgers: Iterable[Any]) -> list[tuple[Position, Position]]:
    """The ranges of a bit for each entry, ledger by ledger."""
    found = []
    for ledger in ledgers:
        after = None
        for number in range(_BITS * len(ledger.values) + 1):
            word, bit = divmod(number, _BITS)
            is_set = word < len(ledger.values) and bool(ledger.values[word] >> bit & 1)
            if is_set and after is None:
                after = number - 1
            elif not is_set and after is not None:
                found.append((Position(ledger.key, after), Position(ledger.key, number - 1)))
                after = None
    return found


# -- records ------------------------------------------------------------------------------------------------------


def decode_record(what: str, kind: str, value: bytes) -> Any:
    """A record, which may be compressed."""
    if not value.startswith(_COMPRESSED):
        return _parsed(what, kind, value)
    start = _HEAD_BYTES + int.from_bytes(value[2:_HEAD_BYTES], "big")
    if start > len(value):
        raise TopicDamagedError(f"{what}: its compressed record is cut short")
    how = _parsed(what, "Compressed", value[_HEAD_BYTES:start])
    try:
        return _parsed(what, kind, expand(how.compressionType, value[start:], how.uncompressedSize, _RECORD_BYTES_MAX))
    except TopicDamagedError:
        raise
    except ReplogError as error:
        raise TopicDamagedError(f"{what}: its record: {error}") from error


def _parsed(what: str, kind: str, value: bytes) -> Any:
    try:
        found = records[kind].FromString(value)
    except DecodeError as error:
        raise TopicDamagedError(f"{what}: its record cannot be parsed: {error}") from error
    if not found.IsInitialized():
        raise TopicDamagedError(f"{what}: its record lacks {', '.join(found.FindInitializationErrors())}")
    return found


def _position(found: Any) -> Position:
    return Position(found.ledgerId, found.entryId)


def _properties(found: Iterable[Any]) -> dict[str, str]:
    return {each.key: each.value for each in found}
