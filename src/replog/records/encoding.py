"""Records in the metastore as JSON.

A record begins with `"format"`, which is 1. A reader refuses a higher format, and any name in the list `"required"` that it
does not know. It ignores other unknown fields, and *drops* them when it writes the record again: so a new field that must
survive is listed as required, or raises the format. Records are read strictly: a text is never converted to a number, and a
missing field is never guessed. Any other value raises `MetastoreCorruptError`.
"""

from __future__ import annotations

import itertools
import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import cattrs
from cattrs.gen import make_dict_unstructure_fn, override

from replog.errors import MetastoreCorruptError
from replog.protocol.chunks import Chunk, ChunkContents, is_packed
from replog.protocol.closed_contents import Contents
from replog.protocol.cursors import CursorRecord
from replog.protocol.digest import DigestType
from replog.protocol.gaps import Gap
from replog.protocol.model import (
    WRITER_TERM,
    Durability,
    Fragment,
    LedgerMetadata,
    LogCursor,
    LogMetadata,
    LogPage,
    PendingLedger,
    Position,
    Segment,
    Transaction,
)
from replog.protocol.producers import ProducersRecord
from replog.records.jobs import JobLedger, JobPart

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

FORMATS: dict[type, int] = {
    LedgerMetadata: 1,
    ChunkContents: 1,
    LogMetadata: 1,
    LogPage: 1,
    PendingLedger: 1,
    JobLedger: 1,
    JobPart: 1,
    CursorRecord: 1,
    ProducersRecord: 1,
}

Record = TypeVar(
    "Record",
    LedgerMetadata,
    ChunkContents,
    LogMetadata,
    LogPage,
    PendingLedger,
    JobLedger,
    JobPart,
    CursorRecord,
    ProducersRecord,
)

Value = TypeVar("Value")

_LOG_FIELDS = (  # a log's record without one of these is damaged: a default would hide segments
    "segments",
    "first_segment_number",
    "next_segment_number",
    "page_segments",
    "deleted_before_number",
    "dropped",
    "first_open_number",
    "trimmed_to",
)
_TERM_FIELDS = ("is_unbounded", "owner", "open_term", "trim_to")
_DURABILITY_FIELDS = ("durability", "full_before")
# Required of a record that has it: a version that does not know it would look for the entries at bookies, and have them repaired.
_ARCHIVE_FIELD = "fragments.archive"
_SHOWN_BYTES = 200  # of a damaged value, in an error
_CONTENTS_TYPES = frozenset((int, *rest) for rest in itertools.product((int, type(None)), repeat=3))
_SEGMENT_TYPES = frozenset(
    (int, int, int, *contents, *term) for contents in ((), *_CONTENTS_TYPES) for term in ((), (int,))
)


AnyRecord = (
    LedgerMetadata
    | ChunkContents
    | LogMetadata
    | LogPage
    | PendingLedger
    | JobLedger
    | JobPart
    | CursorRecord
    | ProducersRecord
)


def encode(record: AnyRecord) -> bytes:
    """The bytes of this record."""
    fields = {"format": FORMATS[type(record)], **converter.unstructure(record)}
    if isinstance(record, LedgerMetadata):
        fields = _of_its_kind(fields, record)
    if isinstance(record, ChunkContents) and _is_archived(record.fragments):
        fields["required"] = [_ARCHIVE_FIELD]
    if isinstance(record, LogMetadata):
        fields = _of_log_kind(fields)
    # For an existing log, the origin of its pages does not matter.
    if isinstance(record, LogPage) and not record.is_tentative:
        del fields["is_tentative"]
    # A version that drops them makes the writers remember those producers again.
    if isinstance(record, ProducersRecord) and not record.retired:
        del fields["retired"]
    if "segments" in fields:
        fields["segments"] = fields.pop("segments")  # last: people see the rest first
    # Custom metadata may hold lone surrogates: strict UTF-8 would refuse them, and `json.loads` reads them back.
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass") + b"\n"


def _of_its_kind(fields: dict[str, Any], metadata: LedgerMetadata) -> dict[str, Any]:
    """The fields of a ledger, without those of unbounded ledgers if it is bounded, and without those of a guaranteed write quorum
    if it has none (W8), and without chunks if there are none (M4). A version that does not know them refuses the record: it would
    write it again without them."""
    assert is_packed(metadata.chunks, metadata.fragments), "what was loaded is packed before it is written (M4)"
    del fields["unnamed"]
    required = list(_TERM_FIELDS) if metadata.is_unbounded else []
    if metadata.durability is Durability.WRITE_QUORUM:
        required += _DURABILITY_FIELDS
    if metadata.chunks:
        required.append("chunks")
    if _is_archived(metadata.fragments):
        required.append(_ARCHIVE_FIELD)
    kept = {
        name: value
        for name, value in fields.items()
        if name in required or name not in (*_TERM_FIELDS, *_DURABILITY_FIELDS, "chunks")
    }
    return {**kept, "required": required} if required else kept


def _is_archived(fragments: Iterable[Fragment]) -> bool:
    return any(each.archive for each in fragments)


def _of_log_kind(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a log. A version that knows nothing of unbounded logs refuses one: it would close the last ledger, and
    forget which term leads."""
    if not fields["requests"]:
        del fields["requests"]  # a version that drops them asks the committers only to ask again
    if fields["begun_with_number"] == 1:
        del fields["begun_with_number"]  # as of each log that was never deleted
    if fields.pop("is_unbounded"):
        return {**fields, "is_unbounded": True, "required": ["is_unbounded"]}
    return fields


def decode(key: str, value: bytes, record_type: type[Record]) -> Record:
    """The record of this type in the value of this key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    known = {field.name for field in attrs.fields(record_type)} - {"unnamed"} | {_ARCHIVE_FIELD}
    fields = read_fields(key, value, FORMATS[record_type], known)
    fields.pop("unnamed", None)
    if record_type is LogMetadata:
        missing = [name for name in _LOG_FIELDS if name not in fields]
        if missing:
            raise corrupt(key, [f"required fields {missing} missing"])
    return structure(key, fields, record_type)


def structure(
    key: str, fields: dict[str, Any], record_type: type[Value], written_as: Mapping[str, str] = MappingProxyType({})
) -> Value:
    """The record of this type with the fields in the value of this key; `written_as` has the names there of attributes that have
    another. Raises `MetastoreCorruptError`, naming every fault."""
    try:
        return converter.structure(fields, record_type)
    except cattrs.BaseValidationError as error:
        faults = cattrs.transform_error(error, path="$", format_exception=_describe)
        for name, written in written_as.items():
            faults = [fault.replace(f" @ $.{name}", f" @ $.{written}") for fault in faults]
        raise corrupt(key, faults) from error


def read_fields(key: str, value: bytes, highest_format: int, known: Collection[str]) -> dict[str, Any]:
    """The JSON object in this value, if its format is known, and each field that it requires is one of `known`.

    Raises `MetastoreCorruptError`, naming the key.
    """
    try:
        fields = json.loads(value)
    except ValueError as error:  # includes UnicodeDecodeError
        raise corrupt(key, [f"not JSON: {error}: {_shown(value)}"]) from error
    except RecursionError as error:
        raise corrupt(key, ["not a JSON object that replog writes: nested too deeply"]) from error
    if not isinstance(fields, dict):
        raise corrupt(key, [f"not a JSON object: {_shown(value)}"])
    version = fields.get("format")
    # Not `isinstance`: `true` in JSON would pass for 1.
    if type(version) is not int or version < 1:
        raise corrupt(key, [f"not a record of replog: its format is {version!r}"])
    # `required` is judged before anything else is read: the meaning of known fields may depend on the unknown one.
    required = fields.get("required", [])
    unknown = sorted({str(each) for each in required} - set(known)) if isinstance(required, list) else ["required"]
    if version > highest_format:
        problem = f"its format is {version}, and this version of replog reads up to {highest_format}"
    elif unknown:
        problem = f"its fields {unknown} must be understood, and this version of replog does not know them"
    else:
        return fields
    raise MetastoreCorruptError(
        f"key {key!r}: {problem}: a newer replog wrote it. Nothing was changed; upgrade this one"
    )


def corrupt(key: str, faults: list[str]) -> MetastoreCorruptError:
    """The error for a value that cannot be trusted."""
    return MetastoreCorruptError(
        f"key {key!r}: the record is damaged ({'; '.join(faults)}). Nothing was changed; "
        "look at the value, and restore it from a backup of the metastore"
    )


def _shown(value: bytes) -> str:
    return repr(value if len(value) <= _SHOWN_BYTES else value[:_SHOWN_BYTES] + b"...")


def _describe(error: BaseException, _type: type | None) -> str:
    return f"required field {error} missing" if isinstance(error, KeyError) else str(error)


def _strictly(wanted: type) -> Callable[[Any, type], Any]:
    def structure(value: Any, _type: type) -> Any:
        if type(value) is not wanted:
            raise TypeError(f"{value!r} is not of type {wanted.__name__}")
        return value

    return structure


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter(unstruct_collection_overrides={tuple: list})
    for simple in (int, str, bool):
        converter.register_structure_hook(simple, _strictly(simple))
    left_out = override(omit_if_default=True)
    converter.register_unstructure_hook(Fragment, make_dict_unstructure_fn(Fragment, converter, archive=left_out))
    converter.register_structure_hook(Gap, _structure_gap)
    converter.register_unstructure_hook(Gap, attrs.astuple)
    converter.register_structure_hook(Chunk, _structure_chunk)
    converter.register_unstructure_hook(Chunk, lambda chunk: (*attrs.astuple(chunk.bare(), recurse=False)[:-1],))
    converter.register_structure_hook(Segment, _structure_segment)
    converter.register_unstructure_hook(Segment, _unstructure_segment)
    converter.register_structure_hook(Contents, _structure_contents)
    converter.register_unstructure_hook(Contents, Contents.as_tuple)
    converter.register_structure_hook(Transaction, _structure_transaction)
    converter.register_unstructure_hook(Transaction, attrs.astuple)
    converter.register_structure_hook(LogCursor, _structure_cursor)
    converter.register_unstructure_hook(LogCursor, lambda each: (each.name, each.cursor_id, str(each.begins_at)))
    converter.register_structure_hook(Position, _structure_position)
    converter.register_unstructure_hook(Position, str)
    converter.register_structure_hook(DigestType, lambda value, _type: _member(DigestType, value))
    converter.register_unstructure_hook(DigestType, lambda digest_type: digest_type.name.lower())
    return converter


def _structure_gap(value: Any, _type: type) -> Gap:
    if not isinstance(value, list) or [type(each) for each in value[:2]] != [int, int] or len(value) != 3:
        raise TypeError(f"{value!r} is not a gap, which is an index, its first entry, and its last one or null")
    if value[2] is not None and type(value[2]) is not int:
        raise TypeError(f"{value!r} is not a gap: its last entry is a number or null")
    return Gap(*value)


def _structure_chunk(value: Any, _type: type) -> Chunk:
    if not isinstance(value, list) or [type(each) for each in value] != [int, int, int, int, int, str]:
        raise TypeError(
            f"{value!r} is not a chunk, which is its first and last entry, its last term, its level, a version, and a digest"
        )
    return Chunk(*value)


def _unstructure_segment(segment: Segment) -> tuple[int | None, ...]:
    # In one list: a log's record has hundreds of segments, and a page a hundred.
    place = (segment.number, segment.ledger_id, segment.created_at_ms)
    contents = () if segment.contents is None else segment.contents.as_tuple()
    return (*place, *contents) if segment.term == WRITER_TERM else (*place, *contents, segment.term)


def _structure_segment(value: Any, _type: type) -> Segment:
    # All types in one comparison: a plan of a long log decodes 100,000 of these.
    types = tuple(map(type, value)) if isinstance(value, list) else ()
    if types not in _SEGMENT_TYPES:
        raise TypeError(
            f"{value!r} is not a segment, which is three numbers: its own, its ledger's, and its time in ms; four of what the "
            "ledger holds, if it is closed and that is known: each of its bytes and times is a number or null; and its term, "
            "above 1"
        )
    if len(value) == 3:
        return Segment(*value)
    term = value[-1] if len(value) in (4, 8) else WRITER_TERM
    contents = _possible(Contents(*value[3:7])) if len(value) > 6 else None
    return Segment(value[0], value[1], value[2], contents, term)


def _structure_contents(value: Any, _type: type) -> Contents:
    types = tuple(map(type, value)) if isinstance(value, list) else ()
    if types not in _CONTENTS_TYPES:
        raise TypeError(
            f"{value!r} is not what a ledger holds: its entries, its bytes, and two times in ms; each of its bytes and times is "
            "a number or null"
        )
    return _possible(Contents(*value))


def _possible(contents: Contents) -> Contents:
    if faults := contents.faults():
        raise ValueError("; ".join(faults))
    return contents


def _structure_transaction(value: Any, _type: type) -> Transaction:
    if not isinstance(value, list) or [type(each) for each in value] != [str, int, int]:
        raise TypeError(f"{value!r} is not a transaction, which is a text, a number, and its time in ms")
    return Transaction(*value)


def _structure_cursor(value: Any, _type: type) -> LogCursor:
    if not isinstance(value, list) or [type(each) for each in value] != [str, str, str]:
        raise TypeError(f"{value!r} is not a cursor, which is a name, an id, and a position")
    return LogCursor(value[0], value[1], Position.parse(value[2]))


def _structure_position(value: Any, _type: type) -> Position:
    if type(value) is not str:
        raise TypeError(f"{value!r} is not a position, which is a text")
    return Position.parse(value)


def _member(digest_types: type[DigestType], name: object) -> DigestType:
    for digest_type in digest_types:
        if digest_type.name.lower() == name:
            return digest_type
    raise ValueError(f"{name!r} is not a digest type")


converter = _make_converter()
