"""The logs that a query reads: the options `log` and `logs`, and what their entries hold.

Rules:
- A name must be there; a pattern may match nothing, and matches logs that are created later.
- All logs of a query hold values of one format. Their schemas are the same, except that one may have columns that were added to
  it: then the widest is the query's, and rows of the others have nulls there.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import attrs

import replog
from replog.errors import ConfigError, SchemaMismatchError
from replog.protocol.model import LogMetadata
from replog.records.paths import log_key_path
from replog.spark.extents import each_at_once
from replog.spark.values import ValueFormat, ValueSchema

_WILD = frozenset("*?[")


@attrs.frozen
class Selection:
    """Names of logs, and patterns of names with `*`, `?` and `[...]`. `is_many` is false for the option `log`."""

    names: tuple[str, ...]
    patterns: tuple[str, ...] = ()
    is_many: bool = False

    @classmethod
    def parse(cls, text: str) -> Selection:
        """Reads the option `logs`: names and patterns, with commas between them. Raises `ConfigError`."""
        words = [each.strip() for each in text.split(",")]
        names = [each for each in words if not _WILD & set(each)]
        for each in names:
            log_key_path(each)  # raises
        if len(set(words)) < len(words):
            raise ConfigError(f"{text!r} names a log twice")
        return cls(tuple(names), tuple(each for each in words if _WILD & set(each)), True)

    def selects(self, name: str) -> bool:
        """True if the query reads a log of this name."""
        return name in self.names or any(fnmatchcase(name, each) for each in self.patterns)

    async def found(self, client: replog.Client) -> list[str]:
        """The names, and those that match now, sorted. Raises `MetastoreError`."""
        if not self.patterns:
            return sorted(self.names)
        return sorted({*self.names, *filter(self.selects, await client.logs())})


def values_of(heads: Sequence[LogMetadata], values: str) -> ValueSchema | None:
    """How the entries of these logs are decoded; None if they are passed on as they are. `values` is what the option says.

    Raises `SchemaMismatchError` if a log holds something else than the option says, or than the others."""
    if values == ValueFormat.BINARY:
        return None
    widest: tuple[LogMetadata, ValueSchema] | None = None
    for head in heads:
        held = ValueSchema.of_log(head)
        if values in list(ValueFormat) and held.format != values:
            raise SchemaMismatchError(
                head.name,
                f"its values are {held.format}, and were to be read as {values}: leave the option out, or say "
                '.option("values", "binary") to read them as they are',
            )
        if widest is None or (held.is_read_as(widest[1]) and len(held.schema) > len(widest[1].schema)):
            widest = head, held
        else:
            _check_alike(head, held, *widest)
    return None if widest is None or widest[1].format is ValueFormat.BINARY else widest[1]


def _check_alike(head: LogMetadata, held: ValueSchema, other: LogMetadata, wanted: ValueSchema) -> None:
    if not held.is_read_as(wanted):
        raise SchemaMismatchError(
            head.name,
            f"its rows are not those of log {other.name!r}, and one query has one schema: {held.shown()} here, {wanted.shown()} "
            'there. Say .option("values", "binary") to read the entries of all as they are, or read it in a query of its own',
        )


def check_values(head: LogMetadata, reader_values: ValueSchema | None, values: str) -> None:
    """Raises `SchemaMismatchError` if a query that has begun can't read this log, which it has found since."""
    if values == ValueFormat.BINARY:
        return
    held = ValueSchema.of_log(head)
    if held.format is ValueFormat.BINARY if reader_values is None else held.is_read_as(reader_values):
        return
    shown = "binary" if reader_values is None else reader_values.shown()
    raise SchemaMismatchError(
        head.name,
        f"it matches the query's pattern and holds {held.shown()}, where the query reads {shown}: begin the query again, with "
        "its checkpoint and another pattern, or with the option values=binary and a new checkpoint",
    )


async def heads_of(client: replog.Client, selection: Selection) -> list[LogMetadata]:
    """The records of all logs that there are. Raises `LogNotFoundError` if one that is named is not there."""
    return await each_at_once(await selection.found(client), client.log_metadata)
