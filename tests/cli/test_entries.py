"""How entries are told from one another on standard input and output."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.cli import entries
from replog.cli.entries import Delimited, Form, InputError, Prefixed, Whole, form_of, shown
from replog.client.entries import EntryBatch
from replog.errors import ConfigError
from replog.log.record_batches import RecordBatch
from replog.protocol.batch import build
from replog.protocol.digest import Digest, DigestType
from replog.protocol.effects import Delivered
from replog.protocol.envelope import EntryId, pack

BYTES = st.lists(st.binary(max_size=20), max_size=20)


def cut_up(form: Form, data: bytes, size: int) -> list[bytes]:
    """What the form makes of this, if it comes in pieces of so many bytes."""
    found: list[bytes] = []
    for start in range(0, len(data), size):
        found += form.cut(data[start : start + size])
    return [*found, *form.end()]


@given(BYTES, st.integers(1, 50))
def test_any_bytes_are_read_back_with_lengths(payloads: list[bytes], size: int) -> None:
    assert cut_up(Prefixed(), Prefixed().joined(payloads), size) == payloads


@given(BYTES, st.integers(1, 50), st.sampled_from([b"\n", b"\0", b"--", b"abab"]))
def test_entries_are_read_back_with_a_delimiter(payloads: list[bytes], size: int, delimiter: bytes) -> None:
    joined = Delimited(delimiter).joined(payloads)
    expected = joined.split(delimiter)  # the same, unless an entry has the delimiter, or begins or ends one
    if expected[-1] == b"":
        expected.pop()
    assert cut_up(Delimited(delimiter), joined, size) == expected


def test_last_line_may_lack_its_end() -> None:
    assert cut_up(Delimited(b"\n"), b"one\n\ntwo", 2) == [b"one", b"", b"two"]
    assert cut_up(Delimited(b"\n"), b"one\r\n", 2) == [b"one\r"]
    assert cut_up(Delimited(b"\n"), b"", 2) == []


def test_whole_input_is_one_entry_if_asked() -> None:
    assert cut_up(Whole(), b"one\ntwo\n", 3) == [b"one\ntwo\n"]
    assert cut_up(Whole(), b"", 3) == [b""]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_too_long_line_is_named(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(entries, "ENTRY_BYTES_MAX", 10)
    for text, line in ((b"one\ntwo\n" + b"x" * 11 + b"\nfour\n", 3), (b"x" * 30, 1), (b"\n" + b"x" * 11, 2)):
        form = Delimited(b"\n", "line")
        found: list[bytes] = []
        with pytest.raises(InputError, match=f"standard input, line {line}: is longer than an entry can be, 10 B"):
            for start in range(0, len(text), size):
                found += form.cut(text[start : start + size])
            found += form.end()
        assert len(found) <= line - 1  # nothing of it, and nothing after it
    assert cut_up(Delimited(b"\n"), b"x" * 10 + b"\n" + b"y" * 10, size) == [b"x" * 10, b"y" * 10]


def test_entries_before_a_too_long_line_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "ENTRY_BYTES_MAX", 10)
    cutting = Delimited(b"\n").cut(b"one\ntwo\n" + b"x" * 11 + b"\nfour\n")
    assert [next(cutting), next(cutting)] == [b"one", b"two"]
    with pytest.raises(InputError):
        next(cutting)


def test_unfinished_entry_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "ENTRY_BYTES_MAX", 1000)
    form = Delimited(b"\n")
    with pytest.raises(InputError):
        for _ in range(1000):
            assert list(form.cut(b"x" * 10)) == []
    assert form.unfinished_bytes <= 1020
    with pytest.raises(InputError, match="Leave --whole out"):
        list(Whole().cut(b"x" * 1001))


def test_invalid_lengths_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Prefixed().joined([b"one", b"two"])
    with pytest.raises(InputError, match="entry 2: the input ends within it"):
        cut_up(Prefixed(), whole[:-1], 3)
    found = []
    with pytest.raises(InputError, match=f"entry 3: a length of {0x74657874} bytes"):
        for entry in Prefixed().cut(whole + b"text without lengths"):
            found.append(entry)
    assert found == [b"one", b"two"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("x", True, False), "--delimiter and --null: choose one"),
        ((None, True, True), "--null and --length-prefixed: choose one"),
        (("", False, False), "--delimiter is empty"),
    ],
)
def test_contradicting_forms_are_refused(arguments: tuple[str | None, bool, bool], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        form_of(*arguments)


def batch_of(entry_id: int, payload: bytes, timestamp_ns: int) -> RecordBatch:
    stored = build(
        Digest(DigestType.CRC32C, 7, b""),
        ledger_id=7,
        first_entry_id=entry_id,
        stride=1,
        payloads=[payload],
        last_add_confirmed=-1,
        stamp=1,
        timestamp_ns=timestamp_ns,
        cumulative_length=1,
    )
    return RecordBatch(1, EntryBatch(Delivered(entry_id, entry_id, (stored,))))


def test_json_has_every_field() -> None:
    for null, positions in ((True, False), (False, True)):
        with pytest.raises(ConfigError, match="--json includes everything"):
            shown(None, null, False, positions=positions, for_programs=True)
    how = shown(None, False, False, for_programs=True)
    payloads = [
        "é\n".encode(),
        b"\xff",
        b"",
        pack(None, key=b"\xff", headers={"a": b"1", "b": b"\xff"}, id=EntryId("me", 7)),
    ]
    texts = [
        how.encode("record", "position", [f"1:{at}"], batch_of(at, payload, 1_500_000_000_123_456_789 + at), 1)
        for at, payload in enumerate(payloads)
    ]
    text, raw, odd, enveloped = texts
    assert json.loads(text) == {
        "kind": "record",
        "position": "1:0",
        "timestamp": "2017-07-14T02:40:00.123456Z",
        "timestamp_ns": 1_500_000_000_123_456_789,
        "size_bytes": 3,
        "data": "é\n",
        "data_base64": None,
    }
    assert (json.loads(raw)["data"], json.loads(raw)["data_base64"]) == (None, "/w==")
    assert (json.loads(odd)["data"], json.loads(odd)["timestamp_ns"]) == ("", 1_500_000_000_123_456_791)
    assert json.loads(enveloped) == {
        **json.loads(odd),
        "position": "1:3",
        "timestamp_ns": 1_500_000_000_123_456_792,
        "key": None,
        "key_base64": "/w==",
        "headers": {"a": "1", "b": None},
        "headers_base64": {"a": None, "b": "/w=="},
        "is_tombstone": True,
        "id": ["me", 7],
    }


@pytest.mark.parametrize("timestamp_ns", [-1, 0, (1 << 63) - 1, -(1 << 63)])
def test_invalid_timestamps_are_none(timestamp_ns: int) -> None:
    """A header's field is any number."""
    found = entries.as_time(timestamp_ns)
    assert found is None or found.endswith("Z")
