"""Keys and records in the metastore: what is written is read back, and what does not fit is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replog.abc import Metastore
from replog.errors import ConfigError, MetastoreCorruptError, MetastoreError
from replog.metastores.memory import MemoryMetastore
from replog.protocol.digest import DigestType
from replog.protocol.gaps import Gap
from replog.protocol.model import (
    Fragment,
    LedgerMetadata,
    LedgerState,
    LogMetadata,
    LogPage,
    PendingLedger,
    Segment,
    Transaction,
)
from replog.protocol.quorum import Quorum
from replog.records.ledgers import decode_ledger, encode_ledger, ledger_id_pages, list_ledger_ids
from replog.records.logs import (
    decode_log,
    decode_log_page,
    decode_pending,
    encode_log,
    encode_log_page,
    encode_pending,
    list_log_names,
    list_log_pages,
)
from replog.records.paths import (
    LEDGER_ID_MAX,
    ledger_key_path,
    ledger_word,
    ledgers_by_leaf,
    log_key_path,
    log_page_key_path,
    log_pending_key_path,
    parse_ledger_key,
    parse_log_key,
    parse_log_page_key,
)
from replog.runtime.keys import check_key
from replog.testing import Fault, FaultyMetastore

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
)
OPEN = LedgerMetadata(7, Quorum(), DigestType.CRC32C, "", (Fragment(0, ("a", "b", "c")),), gaps=(Gap(1, 0),))
LOG = LogMetadata(
    name="orders/\N{SNOWMAN}",
    segments=(Segment(4, 12_345, 1_763_600_000_000), Segment(5, 7, 1_763_600_000_001)),
    first_segment_number=3,
    next_segment_number=6,
    page_segments=2,
    token="another",
    created_at_ms=1_763_500_000_000,
    deletions=1,
    custom={"owner": "me"},
    transactions=(Transaction("nightly \N{SNOWMAN}", 20_261_120), Transaction("4711", 0)),
    deleted_before_number=2,
    dropped=(Segment(2, 4, 1_763_500_000_000),),
)
DELETED_LOG = LOG.deleted(1_763_700_000_000)
PENDING = PendingLedger(LOG.name, 12_346, 6, 1_763_600_000_002)
PAGE = LogPage(LOG.name, 1, (Segment(2, 3, 1_763_500_000_000), Segment(3, 900, 1_763_500_000_001)))

ledger_ids = st.integers(0, LEDGER_ID_MAX) | st.integers(0, 20_000) | st.integers(10**10 - 5, 10**10 + 5)

# -- keys (M2) ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ledger_id", "key"),
    [
        (0, "ledgers/00/0000/0000"),
        (12_345, "ledgers/00/0001/2345"),
        (9_999_999_999, "ledgers/99/9999/9999"),
        (10_000_000_000, "long-ledgers/000/0000/0100/0000/0000"),
        (LEDGER_ID_MAX, "long-ledgers/922/3372/0368/5477/5807"),
    ],
)
def test_the_keys_of_ledgers(ledger_id: int, key: str) -> None:
    assert ledger_key_path(ledger_id) == key
    assert parse_ledger_key(key) == ledger_id


@given(ledger_ids)
def test_a_ledger_key_reads_back_and_no_directory_is_too_large(ledger_id: int) -> None:
    key = ledger_key_path(ledger_id)
    assert parse_ledger_key(key) == ledger_id
    assert all(len(word) <= 4 and word.isdecimal() for word in key.split("/")[1:]), "at most 10 000 children each"


@given(st.lists(ledger_ids, min_size=2, max_size=2, unique=True))
def test_two_ids_have_two_keys_in_the_order_of_the_ids(ids: list[int]) -> None:
    low, high = sorted(ids)
    assert ledger_key_path(low) < ledger_key_path(high)


@pytest.mark.parametrize("ledger_id", [-1, LEDGER_ID_MAX + 1])
def test_an_id_out_of_range_has_no_key(ledger_id: int) -> None:
    with pytest.raises(ConfigError, match="invalid ledger id"):
        ledger_key_path(ledger_id)


@pytest.mark.parametrize(
    "key",
    [
        "ledgers",
        "ledgers/1",
        "ledgers/00/0000/000x",
        "ledgers/0/00000/0000",
        "long-ledgers/000/0000/0000/0000/0001",
        "long-ledgers/999/9999/9999/9999/9999",
        "ledgers/00/0000/\N{ARABIC-INDIC DIGIT ONE}000",
        "logs/00/0000/0000",
    ],
)
def test_what_is_no_ledgers_key_is_refused(key: str) -> None:
    with pytest.raises(MetastoreCorruptError, match="is not a ledger's"):
        parse_ledger_key(key)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("orders", "logs/orders"),
        ("Orders-1_a.b~c", "logs/Orders-1_a.b~c"),
        ("a/b c%", "logs/a%2Fb%20c%25"),
        ("\N{LATIN SMALL LETTER E WITH ACUTE}", "logs/%C3%A9"),
        (".", "logs/%2E"),
        ("..", "logs/%2E%2E"),
        ("...a", "logs/...a"),
    ],
)
def test_the_keys_of_logs(name: str, key: str) -> None:
    assert log_key_path(name) == key
    assert parse_log_key(key) == name


@given(st.text(min_size=1, max_size=250))
def test_a_name_has_a_key_that_every_metastore_takes_or_is_refused(name: str) -> None:
    try:
        key = log_key_path(name)
    except ConfigError:
        too_long = len(name) > 200 or len(name.encode()) * 3 > 400
        assert too_long or not name.isprintable()
        return
    assert key.isascii()
    assert parse_log_key(key) == name
    check_key(key)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "it is empty"),
        ("a\nb", "cannot be printed"),
        ("a\x00", "cannot be printed"),
        ("\ud800", "cannot be printed"),
        ("a" * 201, "201 characters, and 200 are allowed"),
        ("/" * 150, "450 bytes when percent-encoded, and 400 are allowed"),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_the_reason(name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        log_key_path(name)
    assert log_key_path("a" * 200) == "logs/" + "a" * 200


@pytest.mark.parametrize(
    "key", ["logs/", "logs/a%2", "logs/%61", "logs/%2f", "logs/%FF", "ledgers/a", "logs/.", "logs/a/b"]
)
def test_what_is_no_logs_key_is_refused(key: str) -> None:
    with pytest.raises(MetastoreCorruptError, match="is not a log's"):
        parse_log_key(key)


# -- listing ------------------------------------------------------------------------------------------------------

IDS = [0, 1, 9_999, 10_000, 12_345_678, 10**10 - 1, 10**10, 10**10 + 1, 10**15, LEDGER_ID_MAX]


async def create_ledgers(ids: list[int]) -> MemoryMetastore:
    metastore = MemoryMetastore()
    for ledger_id in ids:
        await metastore.create(ledger_key_path(ledger_id), b"")
    return metastore


async def test_ledgers_are_listed_in_ascending_order() -> None:
    metastore = await create_ledgers(IDS[::-1])
    assert await list_ledger_ids(metastore) == IDS
    assert await list_ledger_ids(MemoryMetastore()) == []


async def pages(metastore: Metastore, after: int = -1) -> list[list[int]]:
    return [page async for page in ledger_id_pages(metastore, after)]


async def test_a_page_is_a_directory_and_begins_after_any_id() -> None:
    metastore = await create_ledgers(IDS)
    assert (await pages(metastore))[0] == [0, 1, 9_999]
    for each in IDS:
        for after in (each - 1, each, each + 1):
            found = [ledger_id for page in await pages(metastore, after) for ledger_id in page]
            assert found == [later for later in IDS if later > after]
    assert await pages(metastore, 10**10) == [[10**10 + 1], [10**15], [LEDGER_ID_MAX]]


async def test_a_listing_asks_once_for_each_key_that_has_something_below() -> None:
    ids = [*range(0, 40_000, 100), 123_456_789, 10**12]
    metastore = FaultyMetastore(await create_ledgers(ids))
    assert await list_ledger_ids(metastore) == ids
    # The leaves, what stands above them up to both roots, and nothing twice.
    asked = [call.key for call in metastore.calls]
    assert len(asked) == len(set(asked)) == len(ledger_leaves(ids)) + (1 + 2) + (1 + 3)
    metastore.calls.clear()
    assert await pages(metastore, 30_050) == [list(range(30_100, 40_000, 100)), [123_456_789], [10**12]]
    assert [call.key for call in metastore.calls[:3]] == ["ledgers", "ledgers/00", "ledgers/00/0003"]


@pytest.mark.parametrize(
    "stranger",
    [
        "ledgers/00/0000/stranger",
        "ledgers/00/0000/1",
        "ledgers/00/0000/00001",
        "ledgers/00/0000/\N{ARABIC-INDIC DIGIT ONE}000",
        "ledgers/00/0000/-001",
        "long-ledgers/922/3372/0368/5477/5808",
        "long-ledgers/922/3372/0368/5477/9999",
    ],
)
@pytest.mark.parametrize("has_neighbours", [False, True])
async def test_a_key_that_is_no_ledgers_is_named_wherever_it_stands(stranger: str, has_neighbours: bool) -> None:
    metastore = await create_ledgers([0, 2, LEDGER_ID_MAX - 1, LEDGER_ID_MAX] if has_neighbours else [])
    await metastore.create(stranger, b"")
    with pytest.raises(MetastoreCorruptError, match=stranger):
        await list_ledger_ids(metastore)


def ledger_leaves(ids: list[int]) -> set[str]:
    return {ledger_key_path(each).rpartition("/")[0] for each in ids}


def test_ids_are_grouped_by_the_keys_above_theirs() -> None:
    grouped = dict(ledgers_by_leaf(IDS))
    assert list(grouped) == sorted(ledger_leaves(IDS), key=lambda leaf: ("long" in leaf, leaf))
    for leaf, ids in grouped.items():
        assert [f"{leaf}/{ledger_word(each)}" for each in ids] == [ledger_key_path(each) for each in ids]
    assert [each for ids in grouped.values() for each in ids] == IDS
    assert list(ledgers_by_leaf([])) == []


async def test_a_listing_that_fails_or_finds_strangers_proves_nothing() -> None:
    """B6: garbage collection must not take an error for an absence."""
    metastore = await create_ledgers(IDS)
    faulty = FaultyMetastore(metastore)
    faulty.fail_next("children", Fault.UNAVAILABLE, under="ledgers/99/")
    with pytest.raises(MetastoreError, match="on purpose"):
        await list_ledger_ids(faulty)
    assert faulty.planned() == 0
    await metastore.create("ledgers/00/0000/stranger", b"")
    with pytest.raises(MetastoreCorruptError, match="ledgers/00/0000/stranger"):
        await list_ledger_ids(metastore)


async def test_logs_are_listed_by_name() -> None:
    metastore = MemoryMetastore()
    for name in ("b/c", "a", "..", "Z"):
        await metastore.create(log_key_path(name), encode_log(attrs.evolve(LOG, name=name)))
        await metastore.create(log_page_key_path(name, 1), encode_log_page(attrs.evolve(PAGE, log_name=name)))
    await metastore.create(log_key_path("deleted"), encode_log(attrs.evolve(DELETED_LOG, name="deleted")))
    await metastore.create(log_key_path("damaged"), b"{")
    assert await list_log_names(metastore) == ["..", "Z", "a", "b/c", "damaged"]


async def test_pages_of_a_log_are_listed_by_number_and_a_stranger_among_them_is_named() -> None:
    metastore = MemoryMetastore()
    assert await list_log_pages(metastore, "a/pages/1") == []
    for number in (10, 9, 0, 123):
        await metastore.create(log_page_key_path("a/pages/1", number), b"")
    assert await list_log_pages(metastore, "a/pages/1") == [0, 9, 10, 123]
    await metastore.create(log_page_key_path("b", 1), b"")
    await metastore.create("logs/b/pages/01", b"")
    with pytest.raises(MetastoreCorruptError, match="'logs/b/pages/01'"):
        await list_log_pages(metastore, "b")


@given(st.text(min_size=1, max_size=20), st.integers(0, 10**18))
def test_a_page_has_a_key_that_reads_back(name: str, number: int) -> None:
    with suppress(ConfigError):
        key = log_page_key_path(name, number)
        check_key(key)
        assert parse_log_page_key(key) == (name, number)


@pytest.mark.parametrize("key", ["logs/a", "logs/a/pages/", "logs/a/pages/-1", "logs/a/pages/1/2", "logs//pages/1"])
def test_what_is_no_page_has_no_key_of_one(key: str) -> None:
    with pytest.raises(MetastoreCorruptError):
        parse_log_page_key(key)


# -- records ------------------------------------------------------------------------------------------------------

GOLDEN: dict[str, tuple[Any, Any, LedgerMetadata | LogMetadata | LogPage | PendingLedger, str]] = {
    "ledger-closed-v1": (encode_ledger, decode_ledger, LEDGER, ledger_key_path(LEDGER.ledger_id)),
    "ledger-open-v1": (encode_ledger, decode_ledger, OPEN, ledger_key_path(OPEN.ledger_id)),
    "log-v1": (encode_log, decode_log, LOG, log_key_path(LOG.name)),
    "log-deleted-v1": (encode_log, decode_log, DELETED_LOG, log_key_path(LOG.name)),
    "log-page-v1": (encode_log_page, decode_log_page, PAGE, log_page_key_path(LOG.name, 1)),
    "log-pending-v1": (encode_pending, decode_pending, PENDING, log_pending_key_path(LOG.name, PENDING.ledger_id)),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_format_is_what_it_was(name: str) -> None:
    """If this fails, the format has changed: once it was released, give it another number, and read the old one too."""
    encode, decode, record, key = GOLDEN[name]
    golden = (FORMATS / f"metadata-{name}.json").read_bytes()
    assert encode(record) == golden
    assert decode(key, golden) == record
    assert golden.startswith(b'{"format":%d,' % int(name[-1]))


def test_every_field_of_a_record_is_written() -> None:
    logs = ((LOG, DELETED_LOG), encode_log), ((PAGE,), encode_log_page), ((PENDING,), encode_pending)
    for records, encode in (((LEDGER,), encode_ledger), *logs):
        written = json.loads(encode(records[0]))  # type: ignore[arg-type]
        fields = attrs.fields(type(records[0]))
        assert set(written) == {"format", *(field.name for field in fields)}
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
    fragments = tuple(Fragment(start, draw(bookies), draw(entry_ids)) for start in starts)
    state = draw(st.sampled_from(LedgerState))
    return LedgerMetadata(
        draw(ledger_ids),
        quorum,
        draw(st.sampled_from(DigestType)),
        draw(texts),
        fragments,
        state,
        draw(entry_ids),
        draw(st.integers(-1, 1 << 62)) if state is LedgerState.CLOSED else None,
        draw(texts),
        draw(entry_ids),
        draw(st.dictionaries(texts, texts, max_size=3)),
    )


@given(ledgers())
@settings(max_examples=50)
def test_a_ledger_reads_back(ledger: LedgerMetadata) -> None:
    assert decode_ledger(ledger_key_path(ledger.ledger_id), encode_ledger(ledger)) == ledger


def changed(record: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(record), **fields}).encode()


def test_a_field_that_is_not_known_is_ignored_unless_it_is_required() -> None:
    key = ledger_key_path(OPEN.ledger_id)
    newer = changed(encode_ledger(OPEN), colour="blue")
    assert decode_ledger(key, newer) == OPEN
    assert b"colour" not in encode_ledger(decode_ledger(key, newer)), "and is dropped by who writes it again"
    assert decode_ledger(key, changed(newer, required=["term"])) == OPEN
    with pytest.raises(MetastoreCorruptError, match=r"'ledgers/00/0000/0007'.*\['colour'\].*upgrade"):
        decode_ledger(key, changed(newer, required=["term", "colour"]))


@pytest.mark.parametrize(
    ("decode", "key", "known"),
    [(decode_ledger, "ledgers/00/0000/0007", 1), (decode_log, "logs/a", 1), (decode_log_page, "logs/a/pages/0", 1)],
)
def test_a_newer_format_is_refused_by_key_and_version(decode: Any, key: str, known: int) -> None:
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
        ({"fragments": [{"first_entry_id": 0}]}, r"'ensemble' missing @ \$\.fragments\[0\]"),
        ({"custom": {"a": 1}}, "1 is not of type str"),
    ],
)
def test_a_record_that_cannot_be_is_refused_with_key_and_fault(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(MetastoreCorruptError, match=fault) as raised:
        decode_ledger("ledgers/00/0000/0007", changed(encode_ledger(OPEN), **fields))
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
        ({"transactions": [["a", 1], ["b", 1], ["a", 2]]}, "one of them stands there twice"),
        ({"transactions": [["a", True]]}, r"\['a', True\] is not a transaction"),
        ({"transactions": [["a"]]}, "is not a transaction"),
        ({"page_segments": 1}, "page_segments is 1, and must be at least 2"),
        ({"deleted_at_ms": 1}, "deleted_at_ms is 1, of a log with 3 segments"),
        ({"segments": "abc"}, "segments"),
        ({"segments": [[4, 1], [5, 2, 0]]}, r"\[4, 1\] is not a segment"),
        ({"segments": [[4, True, 0], [5, 2, 0]]}, "is not a segment"),
        ({"segments": [{"number": 4, "ledger_id": 1}]}, "is not a segment"),
    ],
)
def test_a_log_that_cannot_be_is_refused(fields: dict[str, Any], fault: str) -> None:
    """L3: segment numbers are never reused, so they rise."""
    with pytest.raises(MetastoreCorruptError, match=fault):
        decode_log(log_key_path(LOG.name), changed(encode_log(LOG), **fields))


@pytest.mark.parametrize("name", ["segments", "first_segment_number", "next_segment_number", "page_segments"])
def test_what_a_log_cannot_be_without_is_never_guessed(name: str) -> None:
    fields = {key: value for key, value in json.loads(encode_log(LOG)).items() if key != name}
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
def test_a_page_that_cannot_be_is_refused(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(MetastoreCorruptError, match=fault):
        decode_log_page(log_page_key_path(LOG.name, 1), changed(encode_log_page(PAGE), **fields))


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
def test_any_value_in_any_field_of_a_log_gives_a_record_or_a_named_error(name: str, value: object) -> None:
    with suppress(MetastoreCorruptError):
        decode_log(log_key_path(LOG.name), changed(encode_log(LOG), **{name: value}))


@given(st.sampled_from([field.name for field in attrs.fields(LedgerMetadata)]), JSON)
def test_any_value_in_any_field_gives_a_record_or_a_named_error(name: str, value: object) -> None:
    with suppress(MetastoreCorruptError):
        decode_ledger("ledgers/00/0000/0007", changed(encode_ledger(OPEN), **{name: value}))


def test_what_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(MetastoreCorruptError, match="nested too deeply"):
        decode_log("logs/a", b"[" * 100_000)
