"""Rows of Spark as entries with keys and headers: what tasks of `foreachPartition` make of a row.

Headers are a map, or a list of pairs, which is what Kafka's sources and sinks have: `array<struct<key,value>>`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from pyspark.sql.types import Row

from replog.errors import ConfigError
from replog.protocol.envelope import pack

_COLUMNS = {"value", "key", "headers"}

OfRow = Callable[[Any], Any]


@attrs.frozen
class RowEncoder:
    """Makes the entry of a row, by functions that make its parts of the row. Without any, the columns `value`, `key` and
    `headers` are its parts, as in the data source; or the row is bytes, or has one column of bytes. Can be pickled if the
    functions can."""

    value: OfRow | None = None
    key: OfRow | None = None
    headers: OfRow | None = None

    def __call__(self, row: Any) -> bytes:
        """The entry. Raises `ConfigError` or TypeError for a row that cannot be one, and what the functions raise."""
        if self.value is None and self.key is None and self.headers is None:
            names = getattr(row, "__fields__", ())
            if len(names) < 2 or "value" not in names or not set(names) <= _COLUMNS:
                return bytes_of(row)
            columns = row.asDict()
            value, key = _column(columns["value"]), _column(columns.get("key"))
            return pack(value, key=key, headers=headers_of(columns.get("headers")))
        value = bytes_of(row) if self.value is None else self.value(row)
        key = None if self.key is None else self.key(row)
        return pack(value, key=key, headers=None if self.headers is None else headers_of(self.headers(row)))


def _column(value: Any) -> Any:
    # Texts become UTF-8, as in the data source. Spark gives binary columns as bytearray or as bytes.
    return value.encode() if isinstance(value, str) else _plain(value)


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def headers_of(found: Any) -> Mapping[str, bytes] | None:
    """The headers of a row, as a mapping. Raises `ConfigError` if a name is there twice: Kafka allows that, and an entry has one
    value for each name."""
    if found is None:
        return None
    if isinstance(found, Mapping):
        pairs = list(found.items())
    else:
        pairs = [(each["key"], each["value"]) if isinstance(each, Mapping | Row) else each for each in found]
    twice = sorted(str(name) for name, times in Counter(name for name, _ in pairs).items() if times > 1)
    if twice:
        problem = f"headers {', '.join(map(repr, twice))} are there twice, and an entry has one value for each name"
        raise ConfigError(f"{problem}: give them other names, or put their values together")
    return {name: _plain(value) for name, value in pairs}


def bytes_of(row: Any) -> bytes:
    """The entry of a row that is bytes, or has one column of bytes. Raises `ConfigError`."""
    value = row[0] if isinstance(row, Row) and len(row) == 1 else row
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    what = f"a row of {', '.join(row.__fields__)}" if isinstance(row, Row) else f"{type(row).__name__}"
    raise ConfigError(
        f"an entry must be bytes, and {what} is not: say how to make bytes of it, as in "
        "foreach_partition_writer(..., to_bytes=lambda row: json.dumps(row.asDict()).encode())"
    )
