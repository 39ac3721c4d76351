"""How ledgers and logs stand in the metastore: their keys, and their records as JSON.

Keys (M2): `ledgers/NN/NNNN/NNNN` for ids of up to 10 digits, `long-ledgers/NNN/NNNN/NNNN/NNNN/NNNN` for longer ones, so
that no key has more than 10 000 children and no two ids share a key; `logs/NAME` with the name percent-encoded, and
below it `logs/NAME/pages/NUMBER` and `logs/NAME/pending/LEDGER-ID`.

Records begin with `"format"`, which is 1. A reader refuses a higher format, and any name in
the list `"required"` that it does not know; other fields that it does not know it ignores, and *drops* when it writes the
record again. So whoever adds a field that must survive lists it as required, or raises the format. Records are read
strictly: no number from a text, no missing field; what does not fit is `MetastoreCorruptError`, never a guess.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

import attrs
import cattrs

from replog.errors import ConfigError, MetastoreCorruptError
from replog.protocol.digest import DigestType
from replog.protocol.gaps import Gap, merged
from replog.protocol.model import (
    LedgerMetadata,
    LedgerState,
    LogMetadata,
    LogPage,
    PendingLedger,
    Segment,
    Transaction,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence

    from replog.abc import Metastore

FORMATS: dict[type, int] = {LedgerMetadata: 1, LogMetadata: 1, LogPage: 1, PendingLedger: 1}
LEDGER_ID_MAX = (1 << 63) - 1
LEDGERS_KEY = "ledgers"
LONG_LEDGERS_KEY = "long-ledgers"
LOGS_KEY = "logs"
NEXT_LEDGER_ID_KEY = "next-ledger-id"  # a decimal number above every ledger id that was given out; it only grows
LOG_NAME_CHARACTERS_MAX = 200
LOG_WORD_BYTES_MAX = 400  # of the encoded name, so that every metastore can take the key

Record = TypeVar("Record", LedgerMetadata, LogMetadata, LogPage, PendingLedger)

_PAGES_WORD = "pages"
_PENDING_WORD = "pending"
_LOG_FIELDS = (  # never by default
    "segments",
    "first_segment_number",
    "next_segment_number",
    "page_segments",
    "deleted_before_number",
    "dropped",
)

# -- ids ----------------------------------------------------------------------------------------------------------


def decode_next_ledger_id(value: bytes) -> int:
    """What stands at `NEXT_LEDGER_ID_KEY`. Raises `MetastoreCorruptError`."""
    if not value.isdigit():
        raise MetastoreCorruptError(
            f"key {NEXT_LEDGER_ID_KEY!r}: {value[:60]!r} is no ledger id. Nothing was changed; write there a number above "
            "that of every ledger"
        )
    return int(value)


# -- keys ---------------------------------------------------------------------------------------------------------

_SHAPES = {LEDGERS_KEY: (2, 4, 4), LONG_LEDGERS_KEY: (3, 4, 4, 4, 4)}  # in ascending order of the ids
_LEAF_DIGITS = 4  # of the last word, in all shapes
LEAF_LEDGERS = 10**_LEAF_DIGITS  # at most, right below one key
_SHORT_END = 10 ** sum(_SHAPES[LEDGERS_KEY])


def ledger_key_path(ledger_id: int) -> str:
    """The key of a ledger. Raises `ConfigError` if there can be no such ledger."""
    if type(ledger_id) is not int or not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise ConfigError(f"{ledger_id!r} is no ledger id: one is a whole number from 0 to {LEDGER_ID_MAX}")
    prefix = LEDGERS_KEY if ledger_id < _SHORT_END else LONG_LEDGERS_KEY
    shape = _SHAPES[prefix]
    digits = str(ledger_id).zfill(sum(shape))
    starts = [sum(shape[:place]) for place in range(len(shape))]
    return "/".join([prefix, *(digits[start : start + width] for start, width in zip(starts, shape, strict=True))])


def ledgers_by_leaf(ledger_ids: Iterable[int]) -> Iterator[tuple[str, list[int]]]:
    """Ids in ascending order: each key right above some of theirs, with these."""
    for _, together in itertools.groupby(ledger_ids, lambda ledger_id: ledger_id // LEAF_LEDGERS):
        found = list(together)
        yield ledger_key_path(found[0]).rpartition("/")[0], found


def ledger_word(ledger_id: int) -> str:
    """The last word of a ledger's key."""
    return f"{ledger_id % LEAF_LEDGERS:0{_LEAF_DIGITS}}"


def parse_ledger_key(key: str) -> int:
    """The id of the ledger with this key. Raises `MetastoreCorruptError` if it is no ledger's key."""
    digits = "".join(key.split("/")[1:])
    ledger_id = int(digits) if re.fullmatch(r"\d{1,19}", digits, re.ASCII) else -1
    if 0 <= ledger_id <= LEDGER_ID_MAX and ledger_key_path(ledger_id) == key:
        return ledger_id
    raise MetastoreCorruptError(f"key {key!r} stands among the ledgers, and is no ledger's: move it out of the way")


def log_key_path(name: str) -> str:
    """The key of a log. Raises `ConfigError` if a log cannot have this name."""
    problem = _name_problem(name)
    if problem is None:
        return f"{LOGS_KEY}/{_encode_name(name)}"
    shown = name[:60] if isinstance(name, str) else name
    raise ConfigError(f"{shown!r} cannot be the name of a log: {problem}")


def parse_log_key(key: str) -> str:
    """The name of the log with this key. Raises `MetastoreCorruptError` if it is no log's key."""
    prefix, _, word = key.partition("/")
    name = unquote(word)
    if prefix == LOGS_KEY and _name_problem(name) is None and _encode_name(name) == word:
        return name
    raise MetastoreCorruptError(f"key {key!r} stands among the logs, and is no log's: move it out of the way")


def log_pages_key_path(name: str) -> str:
    """The key below which a log's pages stand. Raises `ConfigError`."""
    return f"{log_key_path(name)}/{_PAGES_WORD}"


def log_page_key_path(name: str, page_number: int) -> str:
    """The key of a page of a log. Raises `ConfigError`."""
    return f"{log_pages_key_path(name)}/{page_number}"


def parse_log_page_key(key: str) -> tuple[str, int]:
    """The log's name and the number of the page with this key. Raises `MetastoreCorruptError` if it is no page's key."""
    log_key, _, word = key.rpartition(f"/{_PAGES_WORD}/")
    if re.fullmatch(r"0|[1-9]\d{0,18}", word, re.ASCII):
        return parse_log_key(log_key), int(word)
    raise MetastoreCorruptError(f"key {key!r} stands among a log's pages, and is none: move it out of the way")


def log_pending_key_path(name: str, ledger_id: int | None = None) -> str:
    """The key of a ledger that is pending for a log; without one, the key below which all of them are. Raises `ConfigError`."""
    key = f"{log_key_path(name)}/{_PENDING_WORD}"
    return key if ledger_id is None else f"{key}/{ledger_id}"


def _name_problem(name: object) -> str | None:
    if not isinstance(name, str):
        return "it is no text"
    if not name:
        return "it is empty"
    if not name.isprintable():
        return "it has characters that cannot be printed"
    if len(name) > LOG_NAME_CHARACTERS_MAX:
        return f"it has {len(name)} characters, and {LOG_NAME_CHARACTERS_MAX} are allowed"
    size_bytes = len(_encode_name(name))
    if size_bytes > LOG_WORD_BYTES_MAX:
        return f"it has {size_bytes} bytes when percent-encoded, and {LOG_WORD_BYTES_MAX} are allowed"
    return None


def _encode_name(name: str) -> str:
    """One word of ASCII, the same for one name always; not one of dots, which mean something in paths."""
    word = quote(name, safe="")
    return word if word.strip(".") else word.replace(".", "%2E")


# -- listing ------------------------------------------------------------------------------------------------------


async def ledger_id_pages(metastore: Metastore, after: int = -1) -> AsyncGenerator[list[int], None]:
    """Existing ids above `after`, ascending, in lists of at least one and at most `LEAF_LEDGERS`; lists each key once.

    A ledger that is created or deleted meanwhile may be in or not. Raises `MetastoreError`: nothing is proven (B6). Who may stop
    before its end closes it (`contextlib.aclosing`).
    """
    for prefix, shape in _SHAPES.items():
        lowest, highest = (0, _SHORT_END - 1) if prefix == LEDGERS_KEY else (_SHORT_END, LEDGER_ID_MAX)
        first = max(after + 1, lowest)
        if first > highest:
            continue
        floor = ledger_key_path(first)
        keys = [prefix]  # still to be listed, the lowest ids last
        while keys:
            key = keys.pop()
            words = await metastore.children(key)
            if key.count("/") == len(shape) - 1:
                if ids := [each for each in _ids_of_leaf(key, words) if each >= first]:
                    yield ids
            else:
                below = [f"{key}/{word}" for word in reversed(words)]
                keys += [each for each in below if each >= floor[: len(each)]]


def _ids_of_leaf(leaf: str, words: Sequence[str]) -> list[int]:
    """The ids of these keys, ascending. Raises `MetastoreCorruptError`. There may be ten thousand: only the first key is read
    as a whole, and what differs in its shape."""
    found: list[int] = []
    base = LEDGER_ID_MAX + 1  # of no leaf: it is not known yet
    for word in words:
        if len(word) == _LEAF_DIGITS and word.isdecimal() and word.isascii() and base + int(word) <= LEDGER_ID_MAX:
            found.append(base + int(word))
        else:
            found.append(parse_ledger_key(f"{leaf}/{word}"))
            base = found[-1] - found[-1] % LEAF_LEDGERS
    return sorted(found)


async def list_ledger_ids(metastore: Metastore) -> list[int]:
    """All existing ids, ascending, for who has the memory."""
    return [ledger_id async for page in ledger_id_pages(metastore) for ledger_id in page]


async def list_log_names(metastore: Metastore) -> list[str]:
    """The names of all logs, sorted; without those that were deleted. A log whose record is damaged is among them."""
    names = []
    for word, found in (await metastore.values(LOGS_KEY)).items():
        key = f"{LOGS_KEY}/{word}"
        if not _is_deleted(key, found.value):
            names.append(parse_log_key(key))
    return sorted(names)


def _is_deleted(key: str, value: bytes) -> bool:
    try:
        return decode_log(key, value).is_deleted
    except MetastoreCorruptError:
        return False  # whoever reads that log is told


async def list_log_pages(metastore: Metastore, name: str) -> list[int]:
    """The numbers of the pages that a log has, ascending; also such as nothing refers to any more."""
    key = log_pages_key_path(name)
    return sorted(parse_log_page_key(f"{key}/{word}")[1] for word in await metastore.children(key))


# -- records ------------------------------------------------------------------------------------------------------


def encode_ledger(metadata: LedgerMetadata) -> bytes:
    """The record of a ledger."""
    return _encode(metadata)


def decode_ledger(key: str, value: bytes) -> LedgerMetadata:
    """Reads the record of the ledger with this key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    metadata = _decode(key, value, LedgerMetadata)
    faults = [f"ledger_id is {metadata.ledger_id}"] if metadata.ledger_id != parse_ledger_key(key) else []
    faults += _ledger_faults(metadata)
    if faults:
        raise _corrupt(key, faults)
    return metadata


def encode_log(metadata: LogMetadata) -> bytes:
    """The record of a log: its head."""
    return _encode(metadata)


def decode_log(key: str, value: bytes) -> LogMetadata:
    """Reads the record of the log with this key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    metadata = _decode(key, value, LogMetadata)
    faults = [f"name is {metadata.name!r}"] if metadata.name != parse_log_key(key) else []
    faults += metadata.faults()
    if faults:
        raise _corrupt(key, faults)
    return metadata


def encode_log_page(page: LogPage) -> bytes:
    """The record of a page."""
    return _encode(page)


def decode_log_page(key: str, value: bytes) -> LogPage:
    """Reads the page of a log with this key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    page = _decode(key, value, LogPage)
    numbers = [segment.number for segment in page.segments]
    faults = [f"it is page {page.number} of {page.log_name!r}"]
    faults = faults if (page.log_name, page.number) != parse_log_page_key(key) else []
    if not numbers or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        faults.append(f"segments: the numbers {numbers} don't rise by one (L3)")
    if faults:
        raise _corrupt(key, faults)
    return page


def encode_pending(pending: PendingLedger) -> bytes:
    """The record of a pending ledger."""
    return _encode(pending)


def decode_pending(key: str, value: bytes) -> PendingLedger:
    """Reads the pending ledger with this key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    pending = _decode(key, value, PendingLedger)
    if not 0 <= pending.ledger_id <= LEDGER_ID_MAX or log_pending_key_path(pending.log_name, pending.ledger_id) != key:
        raise _corrupt(key, [f"it is ledger {pending.ledger_id} of log {pending.log_name!r}"])
    return pending


def _ledger_faults(metadata: LedgerMetadata) -> list[str]:
    """What is impossible in a record though every field is of its type."""
    starts = [fragment.first_entry_id for fragment in metadata.fragments]
    faults = []
    if starts[:1] != [0] or not _ascends(starts):
        faults.append(f"fragments: they begin at {starts}, and must rise from 0")
    faults += [
        f"fragments: {list(each.ensemble)} are not {metadata.quorum.ensemble} distinct bookies"
        for each in metadata.fragments
        if not metadata.quorum.ensemble == len(each.ensemble) == len(set(each.ensemble))
    ]
    if (metadata.state is LedgerState.CLOSED) != (metadata.last_entry_id is not None):
        faults.append(f"last_entry_id: {metadata.last_entry_id} in a ledger that is {metadata.state.value}")
    if metadata.last_entry_id is not None and metadata.last_entry_id < -1:
        faults.append(f"last_entry_id: {metadata.last_entry_id} is no entry")
    return faults or _gap_faults(metadata)


def _gap_faults(metadata: LedgerMetadata) -> list[str]:
    """What is impossible in its gaps, if the rest is possible."""
    end = metadata.last_entry_id
    faults = []
    for gap in metadata.gaps:
        last = gap.first_entry_id if gap.last_entry_id is None else gap.last_entry_id
        if not 0 <= gap.index < metadata.quorum.ensemble or not 0 <= gap.first_entry_id <= last:
            faults.append(f"gaps: {list(attrs.astuple(gap))} is none of this ensemble")
        elif end is not None and (gap.last_entry_id is None or last > end):
            faults.append(f"gaps: {list(attrs.astuple(gap))} goes beyond the last entry, {end}")
    if not faults and merged(metadata.gaps, metadata.fragments) != metadata.gaps:
        faults.append(
            f"gaps: {[list(attrs.astuple(gap)) for gap in metadata.gaps]} are not in order, each within a fragment"
        )
    return faults


def _ascends(numbers: list[int]) -> bool:
    return all(lower < higher for lower, higher in itertools.pairwise(numbers))


def _encode(record: LedgerMetadata | LogMetadata | LogPage | PendingLedger) -> bytes:
    fields = {"format": FORMATS[type(record)], **_converter.unstructure(record)}
    if "segments" in fields:
        fields["segments"] = fields.pop("segments")  # last: people see the rest first
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass") + b"\n"


def _decode(key: str, value: bytes, record_type: type[Record]) -> Record:
    try:
        fields = json.loads(value)
    except ValueError as error:  # also a UnicodeDecodeError
        raise _corrupt(key, [f"no JSON: {error}"]) from error
    except RecursionError as error:
        raise _corrupt(key, ["no JSON of ours: nested too deeply"]) from error
    if not isinstance(fields, dict):
        raise _corrupt(key, ["no JSON object"])
    _check_format(key, fields, record_type)
    if record_type is LogMetadata:
        missing = [name for name in _LOG_FIELDS if name not in fields]
        if missing:
            raise _corrupt(key, [f"required fields {missing} missing"])
    try:
        return _converter.structure(fields, record_type)
    except cattrs.BaseValidationError as error:
        raise _corrupt(key, cattrs.transform_error(error, path="$", format_exception=_describe)) from error


def _check_format(key: str, fields: Mapping[str, object], record_type: type) -> None:
    version = fields.get("format")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _corrupt(key, [f"no record of replog: its format is {version!r}"])
    if version > FORMATS[record_type]:
        raise MetastoreCorruptError(
            f"key {key!r}: its format is {version}, and this version of replog reads up to {FORMATS[record_type]}: "
            "a newer replog wrote it; upgrade this one. Nothing was changed"
        )
    required = fields.get("required", [])
    known = {field.name for field in attrs.fields(record_type)}
    unknown = sorted({str(each) for each in required} - known) if isinstance(required, list) else ["required"]
    if unknown:
        raise MetastoreCorruptError(
            f"key {key!r}: its fields {unknown} must be understood, and this version of replog doesn't know them: "
            "a newer replog wrote it; upgrade this one. Nothing was changed"
        )


def _corrupt(key: str, faults: list[str]) -> MetastoreCorruptError:
    return MetastoreCorruptError(
        f"key {key!r}: not a record that can be trusted ({'; '.join(faults)}). Nothing was changed; "
        "look at the value, and restore it from a backup of the metastore"
    )


def _describe(error: BaseException, _type: type | None) -> str:
    return f"required field {error} missing" if isinstance(error, KeyError) else str(error)


def _strictly(wanted: type) -> Callable[[Any, type], Any]:
    def structure(value: Any, _type: type) -> Any:
        if type(value) is not wanted:
            raise TypeError(f"{value!r} is no {wanted.__name__}")
        return value

    return structure


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter(unstruct_collection_overrides={tuple: list})
    for simple in (int, str):
        converter.register_structure_hook(simple, _strictly(simple))
    converter.register_structure_hook(Gap, _structure_gap)
    converter.register_unstructure_hook(Gap, attrs.astuple)
    converter.register_structure_hook(Segment, _structure_segment)
    converter.register_unstructure_hook(Segment, attrs.astuple)
    converter.register_structure_hook(Transaction, _structure_transaction)
    converter.register_unstructure_hook(Transaction, attrs.astuple)
    converter.register_structure_hook(DigestType, lambda value, _type: _member(DigestType, value))
    converter.register_unstructure_hook(DigestType, lambda digest_type: digest_type.name.lower())
    return converter


def _structure_gap(value: Any, _type: type) -> Gap:
    if not isinstance(value, list) or [type(each) for each in value[:2]] != [int, int] or len(value) != 3:
        raise TypeError(f"{value!r} is no gap: one is an index, its first entry, and its last one or null")
    if value[2] is not None and type(value[2]) is not int:
        raise TypeError(f"{value!r} is no gap: its last entry is a number or null")
    return Gap(*value)


def _structure_segment(value: Any, _type: type) -> Segment:
    if not isinstance(value, list) or len(value) != 3 or any(type(each) is not int for each in value):
        raise TypeError(f"{value!r} is no segment: one is three numbers: its own, its ledger's, and its time in ms")
    return Segment(*value)


def _structure_transaction(value: Any, _type: type) -> Transaction:
    if not isinstance(value, list) or [type(each) for each in value] != [str, int]:
        raise TypeError(f"{value!r} is no transaction: one is a text and a number")
    return Transaction(*value)


def _member(digest_types: type[DigestType], name: object) -> DigestType:
    for digest_type in digest_types:
        if digest_type.name.lower() == name:
            return digest_type
    raise ValueError(f"{name!r} is no digest type")


_converter = _make_converter()
