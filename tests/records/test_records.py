"""Records in the metastore: what is written is read back, and what does not fit is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replog.errors import MetastoreCorruptError
from replog.protocol.additions import Addition, AppendRequest, Transaction
from replog.protocol.chunks import Chunk, ChunkContents
from replog.protocol.closed_contents import Contents
from replog.protocol.cursors import CursorRecord
from replog.protocol.digest import DigestType
from replog.protocol.gaps import Gap
from replog.protocol.model import (
    Durability,
    Fragment,
    LedgerMetadata,
    LedgerState,
    LogMetadata,
    PendingLedger,
    Position,
    Segment,
)
from replog.protocol.producers import KnownProducer, ProducersRecord, RetiredProducer
from replog.protocol.quorum import Quorum
from replog.records.chunks import decode_chunk
from replog.records.encoding import AnyRecord, encode, read_fields
from replog.records.jobs import JobLedger, JobPart
from replog.records.ledgers import decode_ledger
from replog.records.logs import (
    decode_cursor,
    decode_job_ledger,
    decode_job_part,
    decode_log,
    decode_log_page,
    decode_pending,
    decode_producers,
)
from replog.records.paths import (
    LEDGER_ID_MAX,
    chunk_key_path,
    job_key_path,
    job_part_key_path,
    ledger_key_path,
    log_cursor_key_path,
    log_key_path,
    log_page_key_path,
    log_pending_key_path,
    log_producers_key_path,
)
from tests.records.samples import DELETED_LOG, LOG, PAGE

FORMATS = Path(__file__).parent.parent / "formats"

LEDGER = LedgerMetadata(
    ledger_id=12_345,
    quorum=Quorum(4, 3, 2),
    digest_type=DigestType.HMAC_SHA256,
    key_check="0f" * 32,
    fragments=(Fragment(0, ("a", "b", "c", "d")), Fragment(100, ("a", "e", "c", "d"), 1)),
    state=LedgerState.CLOSED,
    term=2,
    last_entry_id=141,
    token="a-token",
    created_at_ms=1_763_600_000_000,
    custom={"application": "d\N{LATIN SMALL LETTER E WITH ACUTE}mo"},
    gaps=(Gap(1, 17, 99), Gap(2, 90, 99), Gap(2, 100, 141)),
    contents=Contents(142, 9000, 1_763_600_000_005, 1_763_600_100_000),
    creation="a-creation",
    revision=4,
)

OPEN = LedgerMetadata(7, Quorum(), DigestType.CRC32C, "", (Fragment(0, ("a", "b", "c")),), gaps=(Gap(1, 0),))

UNBOUNDED = LedgerMetadata(
    8,
    Quorum(),
    DigestType.HMAC_SHA256,
    "0123456789abcdef",
    (Fragment(40, ("a", "b", "c"), 1), Fragment(73, ("a", "b", "d"), 3)),
    LedgerState.IN_RECOVERY,
    5,
    token="deadbeef.3",
    gaps=(Gap(1, 73),),
    is_unbounded=True,
    owner="deadbeef",
    open_term=3,
    trim_to=40,
)

FULL = attrs.evolve(UNBOUNDED, ledger_id=9, durability=Durability.WRITE_QUORUM, full_before=73)
CHUNKED = attrs.evolve(
    UNBOUNDED,
    ledger_id=10,
    trim_to=7,
    chunks=(
        Chunk(7, 29, 1, 2, 300, "00112233445566778899aabbccddeeff"),
        Chunk(30, 39, 1, 1, 412, "ffeeddccbbaa99887766554433221100"),
    ),
)
CHUNK = ChunkContents((Fragment(30, ("a", "b", "c")), Fragment(35, ("a", "b", "d"))), (Gap(1, 30, 34),))
CHUNK_OF_CHUNKS = ChunkContents(
    chunks=(
        Chunk(7, 12, 1, 1, 95, "0123456789abcdef0123456789abcdef"),
        Chunk(13, 29, 1, 1, 201, "fedcba9876543210fedcba9876543210"),
    )
)
ARCHIVED = attrs.evolve(LEDGER, fragments=(attrs.evolve(LEDGER.fragments[0], archive="4f1d/9c02"), LEDGER.fragments[1]))
ARCHIVED_CHUNK = attrs.evolve(
    CHUNK, fragments=(attrs.evolve(CHUNK.fragments[0], archive="4f1d/9c02"), CHUNK.fragments[1])
)
ARCHIVED_NAME = Chunk(30, 39, 1, 1, 412, ARCHIVED_CHUNK.digest())
CHUNK_NAME = Chunk(30, 39, 1, 1, 412, CHUNK.digest())
UPPER_NAME = Chunk(7, 29, 1, 2, 300, CHUNK_OF_CHUNKS.digest())
ASKED_LOG = attrs.evolve(
    LOG, requests=(AppendRequest("1f0a.1?2", Addition((7, 9), Transaction("t", 3), "job", {"values": "json"})),)
)
UNBOUNDED_LOG = attrs.evolve(LOG, segments=(LOG.segments[0], attrs.evolve(LOG.segments[1], term=4)), is_unbounded=True)

PENDING = PendingLedger(LOG.name, 12_346, 6, 1_763_600_000_002)

JOB_LEDGER = JobLedger(LOG.name, "nightly/7", 12_347, 1_763_600_000_003)

JOB_PART = JobPart(LOG.name, "nightly/7", 1, 17, 12_347, 1000, "42", 1_763_600_000_004)

PRODUCERS = ProducersRecord(
    LOG.name,
    1,
    5,
    (
        KnownProducer("till \N{SNOWMAN}", -1, 1_763_600_000_000, ((0, 4, 17), (7, 5, 0))),
        KnownProducer("till-2", 41, 1_763_600_000_001, ((42, 1, 3),)),
    ),
)
RETIRED = attrs.evolve(PRODUCERS, retired=(RetiredProducer("till-1", 3),))
CURSOR = CursorRecord(LOG.name, "billing", Position(5, 17), 3, "process 1 on here", 1_763_600_000_005, "nonce")

FRAGMENT = {"first_entry_id": 0, "ensemble": ["a", "b", "c"]}


ledger_ids = st.integers(0, LEDGER_ID_MAX) | st.integers(0, 20_000) | st.integers(10**10 - 5, 10**10 + 5)


GOLDEN: dict[str, tuple[Any, AnyRecord, str]] = {
    "ledger-closed-v1": (decode_ledger, LEDGER, ledger_key_path(LEDGER.ledger_id)),
    "ledger-archived-v1": (decode_ledger, ARCHIVED, ledger_key_path(ARCHIVED.ledger_id)),
    "ledger-open-v1": (decode_ledger, OPEN, ledger_key_path(OPEN.ledger_id)),
    "ledger-unbounded-v1": (decode_ledger, UNBOUNDED, ledger_key_path(UNBOUNDED.ledger_id)),
    "ledger-write-quorum-v1": (decode_ledger, FULL, ledger_key_path(FULL.ledger_id)),
    "ledger-chunked-v1": (decode_ledger, CHUNKED, ledger_key_path(CHUNKED.ledger_id)),
    "ledger-chunk-v1": (
        lambda key, value: decode_chunk(key, value, CHUNK_NAME),
        CHUNK,
        chunk_key_path(10, CHUNK_NAME.name),
    ),
    "ledger-chunk-archived-v1": (
        lambda key, value: decode_chunk(key, value, ARCHIVED_NAME),
        ARCHIVED_CHUNK,
        chunk_key_path(10, ARCHIVED_NAME.name),
    ),
    "ledger-chunk-of-chunks-v1": (
        lambda key, value: decode_chunk(key, value, UPPER_NAME),
        CHUNK_OF_CHUNKS,
        chunk_key_path(10, UPPER_NAME.name),
    ),
    "log-v1": (decode_log, LOG, log_key_path(LOG.name)),
    "log-request-v1": (decode_log, ASKED_LOG, log_key_path(LOG.name)),
    "log-unbounded-v1": (decode_log, UNBOUNDED_LOG, log_key_path(LOG.name)),
    "log-deleted-v1": (decode_log, DELETED_LOG, log_key_path(LOG.name)),
    "log-page-v1": (decode_log_page, PAGE, log_page_key_path(LOG.name, 1)),
    "log-job-ledger-v1": (decode_job_ledger, JOB_LEDGER, f"{job_key_path(LOG.name, 'nightly/7')}/12347"),
    "log-job-part-v1": (decode_job_part, JOB_PART, job_part_key_path(LOG.name, "nightly/7", 1, 17)),
    "log-cursor-v1": (
        lambda key, value: decode_cursor(key, value, CURSOR.log_name, CURSOR.name),
        CURSOR,
        log_cursor_key_path(LOG.name, "c0ffee"),
    ),
    "log-producers-v1": (
        lambda key, value: decode_producers(key, value, PRODUCERS.log_name),
        PRODUCERS,
        log_producers_key_path(LOG.name),
    ),
    "log-pending-v1": (decode_pending, PENDING, log_pending_key_path(LOG.name, PENDING.ledger_id)),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_format_is_unchanged(name: str) -> None:
    """If this fails, the format has changed: once it was released, give it another number, and read the old one too."""
    decode, record, key = GOLDEN[name]
    golden = (FORMATS / f"metadata-{name}.json").read_bytes()
    assert encode(record) == golden
    assert decode(key, golden) == record
    # What segments hold is not compared there.
    assert encode(decode(key, golden)) == golden
    assert golden.startswith(b'{"format":%d,' % int(name[-1]))


def test_retired_producers_are_read_back() -> None:
    written = encode(RETIRED)
    assert json.loads(written)["retired"] != []
    assert decode_producers(log_producers_key_path(LOG.name), written, RETIRED.log_name) == RETIRED


def test_every_field_of_a_record_is_written() -> None:
    full = attrs.evolve(UNBOUNDED_LOG, requests=ASKED_LOG.requests)
    unbounded = attrs.evolve(CHUNKED, durability=Durability.WRITE_QUORUM, full_before=73)
    chunks, logs = (CHUNK, CHUNK_OF_CHUNKS), (full, LOG, DELETED_LOG)
    alone = (
        (attrs.evolve(PAGE, is_tentative=True), PAGE),
        (PENDING,),
        (JOB_LEDGER,),
        (JOB_PART,),
        (CURSOR,),
        (RETIRED, PRODUCERS),
    )
    for records in ((unbounded, LEDGER), chunks, logs, *alone):
        written = json.loads(encode(records[0]))
        # What a value no longer names concerns only who changes the record (M4).
        fields = [field for field in attrs.fields(type(records[0])) if field.name != "unnamed"]
        assert set(written) - {"required"} == {"format", *(field.name for field in fields)}
        for field in fields:
            if field.default is not attrs.NOTHING and not isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]
                assert any(getattr(record, field.name) != field.default for record in records), (
                    f"{field.name}: the golden file should tell it apart"
                )


entry_ids = st.integers(0, 1 << 62)


texts = st.text(max_size=10)


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    ensemble = draw(st.integers(1, 4))
    write = draw(st.integers(1, ensemble))
    quorum = Quorum(ensemble, write, draw(st.integers(1, write)))
    bookies = st.lists(texts, min_size=ensemble, max_size=ensemble, unique=True).map(tuple)
    starts = [0, *draw(st.lists(entry_ids.filter(bool), max_size=3, unique=True).map(sorted))]
    is_unbounded = draw(st.booleans())
    terms = sorted(draw(st.integers(1, 1 << 62)) if is_unbounded else 1 for _ in range(len(starts) + 2))
    if is_unbounded:
        starts = starts[1:] or starts
    fragments = tuple(Fragment(start, draw(bookies), term) for start, term in zip(starts, terms, strict=False))
    state = draw(st.sampled_from(LedgerState))
    return LedgerMetadata(
        draw(ledger_ids),
        quorum,
        draw(st.sampled_from(DigestType)),
        draw(texts),
        fragments,
        state,
        terms[-1],
        draw(st.integers(-1, 1 << 62)) if state is LedgerState.CLOSED else None,
        draw(texts),
        draw(entry_ids),
        draw(st.dictionaries(texts, texts, max_size=3)),
        is_unbounded=is_unbounded,
        owner=draw(texts) if is_unbounded else "",
        open_term=terms[-2],
        trim_to=starts[0],
        durability=draw(st.sampled_from(Durability)),
    )


def test_impossible_contents_are_refused() -> None:
    key = ledger_key_path(LEDGER.ledger_id)
    page_key = log_page_key_path(PAGE.log_name, PAGE.number)
    for contents in (
        [142, -1, 5, 6],
        [142, 9000, 5],
        [142, "9000", 5, 6],
        [141, 9000, 5, 6],
        [0, 1, None, None],
        [None] * 4,
    ):
        with pytest.raises(MetastoreCorruptError, match=r"contents|what a ledger"):
            decode_ledger(key, changed(encode(LEDGER), contents=contents))
        if contents[:1] != [141]:
            with pytest.raises(MetastoreCorruptError, match=r"contents|what a ledger|a segment"):
                decode_log_page(page_key, changed(encode(PAGE), segments=[[2, 3, 0, *contents]]))
    with pytest.raises(MetastoreCorruptError, match="contents: 1 entries"):
        decode_ledger(ledger_key_path(OPEN.ledger_id), changed(encode(OPEN), contents=[1, 1, 1, 1]))


@given(ledgers())
@settings(max_examples=50)
def test_ledger_record_reads_back(ledger: LedgerMetadata) -> None:
    assert decode_ledger(ledger_key_path(ledger.ledger_id), encode(ledger)) == ledger


def changed(record: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(record), **fields}).encode()


def test_unknown_field_is_ignored_unless_required() -> None:
    key = ledger_key_path(OPEN.ledger_id)
    newer = changed(encode(OPEN), colour="blue")
    assert decode_ledger(key, newer) == OPEN
    assert b"colour" not in encode(decode_ledger(key, newer)), "and is dropped by who writes it again"
    assert decode_ledger(key, changed(newer, required=["term"])) == OPEN
    with pytest.raises(MetastoreCorruptError, match=r"'ledgers/00/0000/0007'.*\['colour'\].*upgrade"):
        decode_ledger(key, changed(newer, required=["term", "colour"]))


@pytest.mark.parametrize(
    ("decode", "key", "known"),
    [(decode_ledger, "ledgers/00/0000/0007", 1), (decode_log, "logs/a", 1), (decode_log_page, "logs/a/pages/0", 1)],
)
def test_newer_format_is_refused_with_key_and_version(decode: Any, key: str, known: int) -> None:
    for version in (known + 1, 99):
        refused = f"'{key}': its format is {version}.*reads up to {known}.*upgrade"
        with pytest.raises(MetastoreCorruptError, match=refused):
            decode(key, b'{"format":%d,"anything":[]}' % version)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"format": 0}, "its format is 0"),
        ({"format": "1"}, "its format is '1'"),
        ({"format": True}, "its format is True"),
        ({"required": 5}, "required"),
        ({"ledger_id": 8}, "ledger_id is 8"),
        ({"ledger_id": 1 << 70}, "ledger_id is 1180591620717411303424"),
        ({"ledger_id": "7"}, r"'7' is not of type int @ \$\.ledger_id"),
        ({"term": True}, "True is not of type int"),
        ({"term": 1.0}, "1.0 is not of type int"),
        ({"quorum": {"ensemble": 3, "write": 3, "ack": 4}}, r"ensemble >= write >= ack >= 1 must hold.* @ \$\.quorum"),
        ({"digest_type": "md5"}, "'md5' is not a digest type"),
        ({"digest_type": 1}, "1 is not a digest type"),
        ({"state": "closing"}, "'closing' is not a valid LedgerState"),
        ({"state": "closed"}, "last_entry_id: None in a ledger that is closed"),
        ({"last_entry_id": 5}, "last_entry_id: 5 in a ledger that is open"),
        ({"state": "closed", "last_entry_id": -2}, "-2 is not an entry id"),
        ({"gaps": [[3, 0, None]]}, "gaps:.*of the ensemble"),
        ({"gaps": [[0, 5, 4]]}, "gaps:.*of the ensemble"),
        ({"gaps": [[0, -1, 4]]}, "gaps:.*of the ensemble"),
        ({"gaps": [[0, 4, None], [1, 3, None]]}, "gaps:.*not in order"),
        ({"gaps": [[0, 4, 5], [0, 5, 6]]}, "gaps:.*not in order"),
        ({"gaps": [[0, 4]]}, r"not a gap.*\$\.gaps\[0\]"),
        ({"gaps": [[0, 4, "5"]]}, r"not a gap.*\$\.gaps\[0\]"),
        ({"state": "closed", "last_entry_id": 4, "gaps": [[0, 4, None]]}, "gaps:.*beyond the last entry"),
        ({"state": "closed", "last_entry_id": 4, "gaps": [[0, 4, 5]]}, "gaps:.*beyond the last entry"),
        ({"fragments": []}, r"they begin at \[\]"),
        ({"fragments": [{"first_entry_id": 1, "ensemble": ["a", "b", "c"]}]}, r"they begin at \[1\]"),
        ({"fragments": [{"first_entry_id": 0, "ensemble": ["a", "b"]}]}, "not 3 distinct bookies"),
        ({"fragments": [{"first_entry_id": 0, "ensemble": ["a", "b", "a"]}]}, "not 3 distinct bookies"),
        ({"fragments": [{"first_entry_id": 0, "ensemble": ["a", "b", "c"], "term": 2}]}, "terms are \\[2\\]"),
        ({"fragments": [{"first_entry_id": 0, "ensemble": ["a", "b", "c"], "term": 0}]}, "terms are \\[0\\]"),
        ({"fragments": [{"first_entry_id": 0, "ensemble": ["a", "b", "c"], "archive": "4f/9c"}]}, "ends are fixed"),
        ({"state": "closed", "last_entry_id": 4, "fragments": [{**FRAGMENT, "archive": "4f"}]}, "a copy each"),
        ({"state": "closed", "last_entry_id": 4, "fragments": [{**FRAGMENT, "archive": "4f/../9c"}]}, "a copy each"),
        ({"term": 0}, "claimed in 0"),
        ({"trim_to": 5, "fragments": [{"first_entry_id": 5, "ensemble": ["a", "b", "c"]}]}, "of a bounded ledger"),
        ({"is_unbounded": 1}, "1 is not of type bool"),
        ({"fragments": [{"first_entry_id": 0}]}, r"'ensemble' missing @ \$\.fragments\[0\]"),
        ({"custom": {"a": 1}}, "1 is not of type str"),
    ],
)
def test_invalid_ledger_record_is_refused_with_key_and_fault(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(MetastoreCorruptError, match=fault) as raised:
        decode_ledger("ledgers/00/0000/0007", changed(encode(OPEN), **fields))
    assert "'ledgers/00/0000/0007'" in str(raised.value)
    assert "Nothing was changed" in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"name": "other"}, "name is 'other'"),
        ({"next_segment_number": 5}, r"the numbers \[4, 5\] are not the last of 3 to 4"),
        ({"next_segment_number": 7}, r"the numbers \[4, 5\] are not the last of 3 to 6"),
        ({"first_segment_number": 5}, r"the numbers \[4, 5\] are not the last of 5 to 5"),
        ({"first_segment_number": 0}, "of 0 to 5"),
        ({"segments": [[4, 1, 0], [4, 2, 0], [5, 3, 0]]}, r"\[4, 4, 5\] are not"),
        ({"segments": [[3, 1, 0], [5, 2, 0]]}, r"\[3, 5\] are not"),
        ({"segments": [[5, 2, 0]]}, "those before 5 can't stand in pages of 2"),
        ({"segments": []}, "there are none, of a log that has 3 to 5"),
        ({"transactions": [["a", 1, 0], ["b", 1, 0], ["a", 2, 0]]}, "one of them stands there twice"),
        ({"transactions": [["a", True]]}, r"\['a', True\] is not a transaction"),
        ({"transactions": [["a"]]}, "is not a transaction"),
        ({"page_segments": 1}, "page_segments is 1, and must be at least 2"),
        ({"trimmed_to": "3:1"}, "trimmed_to is 3:1, not one of 1:0 to 3:0"),
        ({"trimmed_to": "0:7"}, "trimmed_to is 0:7"),
        ({"deleted_at_ms": 1}, "deleted_at_ms is 1, of a log with 3 segments"),
        ({"segments": "abc"}, "segments"),
        ({"segments": [[4, 1], [5, 2, 0]]}, r"\[4, 1\] is not a segment"),
        ({"segments": [[4, True, 0], [5, 2, 0]]}, "is not a segment"),
        ({"segments": [{"number": 4, "ledger_id": 1}]}, "is not a segment"),
    ],
)
def test_invalid_log_record_is_refused(fields: dict[str, Any], fault: str) -> None:
    """L3: segment numbers are never reused, so they rise."""
    with pytest.raises(MetastoreCorruptError, match=fault):
        decode_log(log_key_path(LOG.name), changed(encode(LOG), **fields))


@pytest.mark.parametrize(
    "name", ["segments", "first_segment_number", "next_segment_number", "page_segments", "trimmed_to"]
)
def test_missing_field_of_a_log_is_never_guessed(name: str) -> None:
    fields = {key: value for key, value in json.loads(encode(LOG)).items() if key != name}
    with pytest.raises(MetastoreCorruptError, match=f"{name}.*missing"):
        decode_log(log_key_path(LOG.name), json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"log_name": "other"}, "it is page 1 of 'other'"),
        ({"number": 2}, "it is page 2 of"),
        ({"segments": []}, r"the numbers \[\] do not rise by one"),
        ({"segments": [[2, 1, 0], [4, 2, 0]]}, r"the numbers \[2, 4\] do not rise by one"),
        ({"segments": [[2, 1]]}, "is not a segment"),
    ],
)
def test_invalid_page_is_refused(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(MetastoreCorruptError, match=fault):
        decode_log_page(log_page_key_path(LOG.name, 1), changed(encode(PAGE), **fields))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=50) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_give_a_record_or_a_named_error(value: bytes) -> None:
    decoders: list[tuple[Any, str]] = [(decode_ledger, "ledgers/00/0000/0007"), (decode_log, "logs/a")]
    decoders += [(decode_log_page, "logs/a/pages/0"), (decode_pending, "logs/a/pending/7")]
    for decode, key in decoders:
        with pytest.raises(MetastoreCorruptError, match=key):
            decode(key, value)


@given(st.sampled_from([field.name for field in attrs.fields(LogMetadata)]), JSON)
def test_any_value_in_a_log_field_gives_a_record_or_an_error(name: str, value: object) -> None:
    with suppress(MetastoreCorruptError):
        decode_log(log_key_path(LOG.name), changed(encode(LOG), **{name: value}))


@given(st.sampled_from([field.name for field in attrs.fields(LedgerMetadata)]), JSON)
def test_any_value_in_a_ledger_field_gives_a_record_or_an_error(name: str, value: object) -> None:
    with suppress(MetastoreCorruptError):
        decode_ledger("ledgers/00/0000/0007", changed(encode(OPEN), **{name: value}))


@pytest.mark.parametrize("record", [ARCHIVED, ARCHIVED_CHUNK])
def test_reader_without_archives_refuses_an_archived_fragment(record: AnyRecord) -> None:
    """It would take the ensemble for the entries' bookies, and drop the field when it writes the record again."""
    written = encode(record)
    fields = {field.name for field in attrs.fields(type(record))}
    with pytest.raises(MetastoreCorruptError, match=r"\['fragments.archive'\] must be understood.*upgrade"):
        read_fields("a-key", written, 1, fields)


def test_deeply_nested_value_is_refused() -> None:
    with pytest.raises(MetastoreCorruptError, match="nested too deeply"):
        decode_log("logs/a", b"[" * 100_000)


@pytest.mark.parametrize("dropped", [(), (2, 5), (5, 2), (5, 5), (1 << 59,)])
def test_enormous_numbers_in_a_log_are_checked_without_counting(dropped: tuple[int, ...]) -> None:
    end = 1 << 60
    segments = tuple(Segment(number, number, 1) for number in dropped)
    log = LogMetadata(
        "log",
        first_segment_number=end,
        next_segment_number=end,
        deletions=1,
        deleted_at_ms=1,
        dropped=segments,
        first_open_number=end,
    )
    is_right = list(dropped) == sorted(set(dropped))
    assert [fault.partition(":")[0] for fault in log.faults()] == ([] if is_right else ["dropped"])
    above = attrs.evolve(log, segments=(Segment(1, 1, 1),), dropped=())
    assert above.faults(), "and one that lists few of so many segments is refused at once"


@pytest.mark.parametrize(
    "fault",
    [
        {"log_name": "another"},
        {"through": -1},
        {"through": 4},
        {"deletions": "1"},
        {"producers": [{"name": "a", "forgotten": 0, "last_ms": 0, "ids": []}]},
        {"producers": [{"name": "a", "forgotten": 0, "last_ms": 0, "ids": [[1, 1, 0], [1, 1, 1]]}]},
        {"producers": [{"name": "a", "forgotten": 0, "last_ms": 0, "ids": [[-1, 1, 0]]}]},
        {"producers": [{"name": "a", "forgotten": 0, "last_ms": 0, "ids": [[1, 1]]}]},
        {"producers": [{"name": "a", "forgotten": 0, "last_ms": 0, "ids": [[1, 1, 0]]}] * 2},
    ],
    ids=str,
)
def test_impossible_record_of_producers_is_refused(fault: dict[str, Any]) -> None:
    """L11: a table that lacks an id would have it appended again."""
    key = log_producers_key_path(LOG.name)
    with pytest.raises(MetastoreCorruptError, match="producers"):
        decode_producers(key, changed(encode(PRODUCERS), **fault), LOG.name)
