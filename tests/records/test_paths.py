"""Keys in the metastore: each reads back as what it was made of, and other keys are refused (M2)."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.errors import ConfigError, MetastoreCorruptError
from replog.records.paths import (
    LEDGER_ID_MAX,
    ledger_key_path,
    log_key_path,
    log_page_key_path,
    parse_ledger_key,
    parse_log_key,
    parse_log_page_key,
)
from replog.runtime.keys import check_key

ledger_ids = st.integers(0, LEDGER_ID_MAX) | st.integers(0, 20_000) | st.integers(10**10 - 5, 10**10 + 5)


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
def test_ledger_keys_are_as_documented(ledger_id: int, key: str) -> None:
    assert ledger_key_path(ledger_id) == key
    assert parse_ledger_key(key) == ledger_id


@given(ledger_ids)
def test_ledger_key_reads_back_and_its_directory_stays_small(ledger_id: int) -> None:
    key = ledger_key_path(ledger_id)
    assert parse_ledger_key(key) == ledger_id
    assert all(len(word) <= 4 and word.isdecimal() for word in key.split("/")[1:]), "at most 10 000 children each"


@given(st.lists(ledger_ids, min_size=2, max_size=2, unique=True))
def test_ledger_keys_are_distinct_and_ordered_as_the_ids(ids: list[int]) -> None:
    low, high = sorted(ids)
    assert ledger_key_path(low) < ledger_key_path(high)


@pytest.mark.parametrize("ledger_id", [-1, LEDGER_ID_MAX + 1])
def test_ledger_key_raises_when_id_is_out_of_range(ledger_id: int) -> None:
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
def test_parsing_raises_when_key_is_not_a_ledgers(key: str) -> None:
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
def test_log_keys_are_as_documented(name: str, key: str) -> None:
    assert log_key_path(name) == key
    assert parse_log_key(key) == name


@given(st.text(min_size=1, max_size=250))
def test_log_key_is_valid_in_every_metastore_or_name_refused(name: str) -> None:
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
def test_log_key_raises_the_reason_when_name_is_invalid(name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        log_key_path(name)
    assert log_key_path("a" * 200) == "logs/" + "a" * 200


@pytest.mark.parametrize(
    "key", ["logs/", "logs/a%2", "logs/%61", "logs/%2f", "logs/%FF", "ledgers/a", "logs/.", "logs/a/b"]
)
def test_parsing_raises_when_key_is_not_a_logs(key: str) -> None:
    with pytest.raises(MetastoreCorruptError, match="is not a log's"):
        parse_log_key(key)


@given(st.text(min_size=1, max_size=20), st.integers(0, 10**18))
def test_page_key_reads_back(name: str, number: int) -> None:
    with suppress(ConfigError):
        key = log_page_key_path(name, number)
        check_key(key)
        assert parse_log_page_key(key) == (name, number)


@pytest.mark.parametrize("key", ["logs/a", "logs/a/pages/", "logs/a/pages/-1", "logs/a/pages/1/2", "logs//pages/1"])
def test_parsing_raises_when_key_is_not_a_pages(key: str) -> None:
    with pytest.raises(MetastoreCorruptError):
        parse_log_page_key(key)
