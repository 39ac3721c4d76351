"""Entries on standard input and output: how they are separated, the same way in both directions.

The output of `log read` and `ledger read` in a form is valid input of `log append` in the same form, byte for byte:
always with lengths, and with a delimiter if no entry contains it.
"""

from __future__ import annotations

import base64
import itertools
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

import attrs
import typer

from replog.cli.output import as_size
from replog.client.entries import Entry, EntryBatch
from replog.errors import ConfigError, ReplogError
from replog.log.record_batches import Record, RecordBatch
from replog.protocol.batch import ENTRY_BYTES_MAX
from replog.protocol.envelope import PLAIN

Delimiter = Annotated[
    str | None, typer.Option("--delimiter", metavar="TEXT", help="What ends each entry, instead of a newline.")
]
Null = Annotated[bool, typer.Option("--null", "-0", help="A zero byte ends each entry.")]
LengthPrefixed = Annotated[
    bool,
    typer.Option("--length-prefixed", help="Each entry's length is before it: 4 bytes, big-endian. For any bytes."),
]

_LENGTH = struct.Struct(">I")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class InputError(ReplogError):
    """Standard input has something that cannot be an entry. The message says where; the entries before it are valid."""


class Form(ABC):
    """How entries are separated. Each stream that is cut needs an instance of its own."""

    @abstractmethod
    def joined(self, payloads: Sequence[bytes]) -> bytes:
        """The bytes that stand for these entries."""

    @abstractmethod
    def cut(self, data: bytes) -> Iterator[bytes]:
        """The entries that are complete with this data. Raises `InputError` after the last valid one."""

    @abstractmethod
    def end(self) -> Iterator[bytes]:
        """The rest, at the end of the input. Raises `InputError`."""

    @property
    @abstractmethod
    def unfinished_bytes(self) -> int:
        """The number of bytes of an entry that is not complete yet."""


class Delimited(Form):
    """A delimiter after each entry; the last one of a stream may lack it."""

    def __init__(self, delimiter: bytes, unit: str = "entry") -> None:
        self._delimiter = delimiter
        self._unit = unit
        self._begun: list[bytes] = []
        self._begun_bytes = 0
        self._count = 0

    @property
    def unfinished_bytes(self) -> int:
        return self._begun_bytes

    def joined(self, payloads: Sequence[bytes]) -> bytes:
        # The empty one at the end puts a delimiter behind the last entry, too.
        return self._delimiter.join([*payloads, b""])

    def cut(self, data: bytes) -> Iterator[bytes]:
        self._begun.append(data)
        self._begun_bytes += len(data)
        if self._delimiter[-1:] in data:  # otherwise no delimiter ends here: no need to search the rest again
            # Joined once for each piece that has a delimiter: an entry of many pieces is not copied for each of them.
            *whole, rest = b"".join(self._begun).split(self._delimiter)
            self._begun, self._begun_bytes = [rest], len(rest)
            for entry in whole:
                self._count += 1
                if len(entry) > ENTRY_BYTES_MAX:
                    raise self._too_long()
                yield entry
        # Before its end has come: an input without any delimiter must not fill the memory.
        # The delimiter itself may have begun already.
        if self._begun_bytes > ENTRY_BYTES_MAX + len(self._delimiter):
            self._count += 1
            raise self._too_long()

    def end(self) -> Iterator[bytes]:
        rest = b"".join(self._begun)
        self._begun, self._begun_bytes = [], 0
        if rest:
            self._count += 1
            if len(rest) > ENTRY_BYTES_MAX:
                raise self._too_long()
            yield rest

    def _too_long(self) -> InputError:
        problem = f"standard input, {self._unit} {self._count}: is longer than an entry can be"
        return InputError(f"{problem}, {as_size(ENTRY_BYTES_MAX)}; nothing of it or after it was written")


class Prefixed(Form):
    """A length before each entry."""

    def __init__(self) -> None:
        self._begun = bytearray()
        self._count = 0

    @property
    def unfinished_bytes(self) -> int:
        return len(self._begun)

    def joined(self, payloads: Sequence[bytes]) -> bytes:
        return b"".join(part for payload in payloads for part in (_LENGTH.pack(len(payload)), payload))

    def cut(self, data: bytes) -> Iterator[bytes]:
        self._begun += data
        place = 0
        try:
            while len(self._begun) - place >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(self._begun, place)
                if size > ENTRY_BYTES_MAX:
                    problem = f"standard input, entry {self._count + 1}: a length of {size} bytes, and the limit is"
                    raise InputError(
                        f"{problem} {as_size(ENTRY_BYTES_MAX)}; nothing of it or after it was written. "
                        "Does each entry have its length before it, 4 bytes, big-endian?"
                    )
                end = place + _LENGTH.size + size
                if end > len(self._begun):
                    break
                self._count += 1
                # Copied out, because the buffer shrinks in `finally`.
                entry = bytes(memoryview(self._begun)[place + _LENGTH.size : end])
                place = end
                yield entry
        finally:
            del self._begun[:place]

    def end(self) -> Iterator[bytes]:
        if self._begun:
            problem = f"standard input, entry {self._count + 1}: the input ends within it"
            raise InputError(f"{problem}; nothing of it was written")
        yield from ()


class Whole(Form):
    """The whole input is one entry."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        self._begun_bytes = 0

    @property
    def unfinished_bytes(self) -> int:
        return self._begun_bytes

    def joined(self, payloads: Sequence[bytes]) -> bytes:
        return b"".join(payloads)

    def cut(self, data: bytes) -> Iterator[bytes]:
        self._begun.append(data)
        self._begun_bytes += len(data)
        if self._begun_bytes > ENTRY_BYTES_MAX:
            problem = f"standard input: is longer than an entry can be, {as_size(ENTRY_BYTES_MAX)}"
            raise InputError(f"{problem}; nothing was written. Leave --whole out, or split it")
        yield from ()

    def end(self) -> Iterator[bytes]:
        yield b"".join(self._begun)
        self._begun, self._begun_bytes = [], 0


def form_of(delimiter: str | None, null: bool, length_prefixed: bool, whole: bool = False) -> Form:
    """The form that the options ask for; lines by default. Raises `ConfigError` if they contradict each other."""
    chosen = [
        name
        for name, is_chosen in (
            ("--delimiter", delimiter is not None),
            ("--null", null),
            ("--length-prefixed", length_prefixed),
            ("--whole", whole),
        )
        if is_chosen
    ]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)}: choose one")
    if delimiter == "":
        raise ConfigError("--delimiter is empty: use --whole for one entry, or --length-prefixed for any bytes")
    if length_prefixed:
        return Prefixed()
    if whole:
        return Whole()
    if null:
        return Delimited(b"\0")
    return Delimited(b"\n", "line") if delimiter is None else Delimited(delimiter.encode(errors="surrogateescape"))


@attrs.frozen
class Shown:
    """How entries are written."""

    form: Form
    positions: bool
    for_programs: bool
    keys: bool = False

    @property
    def needs_places(self) -> bool:
        """True if the place of each entry is written."""
        return self.positions or self.for_programs

    def encode(
        self,
        kind: str,
        place_name: str,
        places: Sequence[int | str],
        batch: EntryBatch | RecordBatch,
        count: int,
    ) -> bytes:
        """The bytes that show the first entries of a batch. `places` has the place of each, if that is needed."""
        entries: Iterator[Entry | Record] = itertools.islice(batch, count)
        if self.for_programs:
            rows = zip(places, entries, strict=True)
            return b"".join(_as_json({"kind": kind, place_name: place}, entry) for place, entry in rows)
        payloads = [_keyed(entry) for entry in entries] if self.keys else batch.payloads()[:count]
        if self.positions:
            pairs = zip(places, payloads, strict=True)
            payloads = [str(place).encode() + b"\t" + data for place, data in pairs]
        return self.form.joined(payloads)


def shown(
    delimiter: str | None,
    null: bool,
    length_prefixed: bool,
    *,
    positions: bool = False,
    keys: bool = False,
    for_programs: bool = False,
) -> Shown:
    """How the options want entries to be written. Raises `ConfigError` if they contradict each other."""
    form = form_of(delimiter, null, length_prefixed)
    if for_programs and (delimiter is not None or null or length_prefixed or positions or keys):
        raise ConfigError(
            "--json includes everything: leave --delimiter, --null, --length-prefixed, --positions and --keys out"
        )
    if length_prefixed and (positions or keys):
        raise ConfigError(f"--length-prefixed and {'--positions' if positions else '--keys'}: choose one, or --json")
    return Shown(form, positions, for_programs, keys)


def _as_json(place: dict[str, object], entry: Entry | Record) -> bytes:
    """An entry as a line of JSON: bytes as text if they are UTF-8, else as base64."""
    text, encoded = as_text(entry.data)
    fields = {
        **place,
        "timestamp": as_time(entry.timestamp_ns),
        "timestamp_ns": entry.timestamp_ns,
        "size_bytes": len(entry.data),
        "data": text,
        "data_base64": encoded,
    }
    if entry.envelope != PLAIN:
        key, encoded_key = (None, None) if entry.key is None else as_text(entry.key)
        texts = {name: as_text(value) for name, value in entry.headers.items()}
        fields |= {
            "key": key,
            "key_base64": encoded_key,
            "headers": {name: value for name, (value, _) in texts.items()},
            "headers_base64": {name: value for name, (_, value) in texts.items()},
            "is_tombstone": entry.is_tombstone,
            "id": None if entry.id is None else list(entry.id),
        }
    return json.dumps(fields).encode() + b"\n"


def _keyed(entry: Entry | Record) -> bytes:
    return (entry.key or b"") + b"\t" + entry.data


def as_text(data: bytes) -> tuple[str | None, str | None]:
    """Bytes as text, or as base64; the other is None."""
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(data).decode()


def as_time(timestamp_ns: int, timespec: str = "microseconds") -> str | None:
    """A writer's clock as ISO 8601, in UTC; None if it is not a valid time."""
    try:
        found = _EPOCH + timedelta(microseconds=timestamp_ns // 1000)
    except OverflowError:
        return None
    return found.isoformat(timespec=timespec).replace("+00:00", "Z")
