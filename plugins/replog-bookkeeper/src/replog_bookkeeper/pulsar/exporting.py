"""Targets of salvaged messages: JSON lines, a Parquet file, or a log of replog's.

A file gets its name when it is complete, and on the disk; until then it has `.part` behind it.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import trio

from replog.cli.connecting import Connection, client_from
from replog.cli.entries import as_text
from replog.cli.ledger.facts import time_of
from replog.errors import ConfigError, LogNotFoundError, ReplogError
from replog.runtime import platform
from replog.runtime.disk_errors import described, exists
from replog_bookkeeper.pulsar.messages import Message, Unreadable

HEADER = "pulsar"  # of a log's entry: what has no place of its own there, as JSON
Write = Callable[[str, Sequence[Message]], Awaitable[list[Unreadable]]]
"""Writes messages of a topic, and returns those that have no place in the target."""
_INT64_MAX = (1 << 63) - 1


class ExportError(ReplogError):
    """The file cannot be written. Retry: when the cause is removed; the whole export is repeated."""


# -- fields -------------------------------------------------------------------------------------------------------


def as_fields(topic: str, message: Message) -> dict[str, object]:
    """A message for JSON: its key and data as text if they are UTF-8, else as base64; times in ISO 8601."""
    fields: dict[str, object] = {"topic": topic}
    for name, value in _values(message).items():
        if name in ("key", "data"):
            fields[name], fields[f"{name}_base64"] = (None, None) if value is None else as_text(value)
        elif name.endswith("_ms"):
            fields[name.removesuffix("_ms")] = time_of(value or 0)
        else:
            fields[name] = value.hex() if isinstance(value, bytes) else value
    return fields


def _values(message: Message) -> dict[str, Any]:
    """Its attributes, as plain values."""
    values = attrs.asdict(message, recurse=False)
    values["transaction"] = as_transaction(message.transaction)
    if message.encryption is not None:
        found = attrs.asdict(message.encryption)
        keys = {name: value.hex() for name, value in message.encryption.keys.items()}
        values["encryption"] = {**found, "keys": keys, "parameter": message.encryption.parameter.hex()}
    return values


def as_transaction(found: tuple[int, int] | None) -> str | None:
    """A transaction's id as Pulsar prints it."""
    return None if found is None else f"({found[0]},{found[1]})"


# -- files --------------------------------------------------------------------------------------------------------


class _JSONLines:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, topic: str, group: Sequence[Message]) -> None:
        self._file.writelines(json.dumps(as_fields(topic, each)).encode() + b"\n" for each in group)

    def end(self) -> None:
        """Nothing comes last."""


class _Parquet:
    def __init__(self, file: BinaryIO) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            problem = "Parquet needs the package pyarrow: pip install 'replog-bookkeeper[parquet]'; nothing was written"
            raise ConfigError(problem) from error
        text, data, time = pyarrow.string(), pyarrow.binary(), pyarrow.timestamp("ms", tz="UTC")
        columns = {"topic": text}
        for field in attrs.fields(Message):
            name = field.name.removesuffix("_ms")
            if name != field.name:
                columns[name] = time
            elif name == "properties":
                columns[name] = pyarrow.map_(text, text)
            elif name in ("data", "key", "ordering_key", "schema_version"):
                columns[name] = data
            else:
                is_text = name in ("producer_name", "replicated_from", "transaction", "encryption")
                columns[name] = text if is_text else pyarrow.uint64()
        self._schema = pyarrow.schema(columns)
        self._table = pyarrow.Table.from_pylist
        self._writer = pyarrow.parquet.ParquetWriter(file, self._schema)

    def write(self, topic: str, group: Sequence[Message]) -> None:
        rows = [{"topic": topic, **self._row(each)} for each in group]
        self._writer.write_table(self._table(rows, schema=self._schema))

    @staticmethod
    def _row(message: Message) -> dict[str, object]:
        row = {}
        for name, value in _values(message).items():
            is_time_beyond = name.endswith("_ms") and value is not None and value > _INT64_MAX
            row[name.removesuffix("_ms")] = None if is_time_beyond else value
        row["encryption"] = None if message.encryption is None else json.dumps(row["encryption"])
        return row

    def end(self) -> None:
        self._writer.close()


@asynccontextmanager
async def file_target(path: Path, *, is_parquet: bool) -> AsyncIterator[Write]:
    """A new file. Raises `ConfigError` if it exists, or Parquet's library is missing; `ExportError`."""
    part = path.with_name(f"{path.name}.part")
    if exists(path):
        raise ConfigError(f"{path}: it exists already; nothing was written")
    try:
        with part.open("wb") as file:
            target = _Parquet(file) if is_parquet else _JSONLines(file)

            async def write(topic: str, group: Sequence[Message]) -> list[Unreadable]:
                await trio.to_thread.run_sync(target.write, topic, group)
                return []

            yield write
            target.end()
            file.flush()
            await trio.to_thread.run_sync(platform.sync_all, file.fileno())
        os.replace(part, path)
        platform.sync_directory(path.parent)
    except OSError as error:
        raise ExportError(f"{path}: {described(error)}; what was written is in {part}") from error


# -- a log --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def log_target(connection: Connection, name: str) -> AsyncIterator[Write]:
    """A new log. Raises `ConfigError` if it exists, and what writing a log raises."""
    async with client_from(connection, creates=True) as client:
        try:
            await client.log_metadata(name)
        except LogNotFoundError:
            pass
        else:
            raise ConfigError(f"log {name}: it exists already; nothing was written. Name a new one")
        async with client.write_log(name) as writer:

            async def write(topic: str, group: Sequence[Message]) -> list[Unreadable]:
                refused = []
                for message in group:
                    # A log has tombstones of keys only.
                    data = b"" if message.data is None and message.key is None else message.data
                    try:
                        await writer.push(data, key=message.key, headers=_headers(topic, message))
                    except ConfigError as error:  # it is too large, or a property's name is: nothing of it was written
                        refused.append(Unreadable(message.ledger_id, message.entry_id, message.entry_id, error))
                await writer.flush()
                return refused

            yield write


def _headers(topic: str, message: Message) -> dict[str, bytes]:
    """Its properties, and beside them what a log's entry has no place for."""
    fields = as_fields(topic, message)
    for name in ("key", "key_base64", "data", "data_base64", "properties"):
        del fields[name]
    own = {name: value for name, value in fields.items() if value is not None}
    if message.data is None:
        own["is_null"] = True
    if HEADER in message.properties:
        own["property"] = message.properties[HEADER]
    return {**{name: value.encode() for name, value in message.properties.items()}, HEADER: json.dumps(own).encode()}
