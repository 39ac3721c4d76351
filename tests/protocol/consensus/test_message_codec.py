"""Messages between members as bytes: what was written is read, and nothing else (Q20)."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.errors import RemoteProtocolError
from replog.protocol.consensus.groups import Membership
from replog.protocol.consensus.log import Base, Kind, LogEntry
from replog.protocol.consensus.message_codec import decode_message, encode_message
from replog.protocol.consensus.messages import Append, Appended, Ask, Copy, MayAsk, Message, Vote, VoteRequest
from tests.protocol.consensus.test_codec import MEMBERS, TERMS

ENTRIES = st.builds(LogEntry, TERMS, st.sampled_from([Kind.NOOP, Kind.COMMANDS]), st.binary(max_size=40)) | st.builds(
    LogEntry, TERMS, st.sampled_from([Kind.CHANGE, Kind.SETTLE]), members=MEMBERS
)
APPENDS = st.builds(Append, TERMS, TERMS, TERMS, st.lists(ENTRIES, max_size=4).map(tuple), TERMS, TERMS)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    APPENDS,
    st.builds(Ask, TERMS, TERMS, TERMS, TERMS),
    st.builds(MayAsk, TERMS, TERMS, st.booleans()),
    st.builds(VoteRequest, TERMS, TERMS, TERMS),
    st.builds(Vote, TERMS, st.booleans()),
    st.builds(Copy, TERMS, st.builds(Base, TERMS, TERMS, MEMBERS), TERMS),
    st.builds(Appended, TERMS, st.booleans(), TERMS, TERMS),
)

GOLDEN = {
    Ask(7, 8, 41, 6): "0101" "0000000000000007" "0000000000000008" "0000000000000029" "0000000000000006",
    MayAsk(7, 8, True): "0102" "0000000000000007" "0000000000000008" "01",
    VoteRequest(8, 41, 6): "0103" "0000000000000008" "0000000000000029" "0000000000000006",
    Vote(8, False): "0104" "0000000000000008" "00",
    Append(8, 41, 6, (LogEntry(8, Kind.NOOP), LogEntry(8, Kind.COMMANDS, b"body")), 40, 3): (
        "0105" "0000000000000008" "0000000000000029" "0000000000000006" "0000000000000028" "0000000000000003"
        "00000002" "0000000e" "0100" "0000000000000008" "00000000"
        "00000012" "0101" "0000000000000008" "263fc950" "626f6479"
    ),
    Appended(8, True, 43, 3): "0107" "0000000000000008" "01" "000000000000002b" "0000000000000003",
}  # fmt: skip
GOLDEN_COPY = Copy(8, Base(41, 6, Membership((("a",),), {"a": "m1:3181"})), 3)


@given(MESSAGES)
def test_message_is_read_as_it_was_written(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize("message", GOLDEN, ids=lambda message: type(message).__name__)
def test_message_has_golden_bytes(message: Message) -> None:
    assert encode_message(message).hex() == GOLDEN[message]
    assert decode_message(bytes.fromhex(GOLDEN[message])) == message


def test_copy_has_golden_bytes() -> None:
    head = "0106" "0000000000000008" "0000000000000003" "0000000000000029" "0000000000000006"  # fmt: skip
    data = bytes.fromhex(head) + b'{"addresses":{"a":"m1:3181"},"groups":[["a"]]}'
    assert encode_message(GOLDEN_COPY) == data
    assert decode_message(data) == GOLDEN_COPY


@given(
    st.binary(max_size=80)
    | st.tuples(st.integers(1, 7), st.binary(max_size=90)).map(lambda each: bytes([1, each[0]]) + each[1])
)
def test_other_bytes_are_refused_by_name(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        assert encode_message(decode_message(data)) == data or data[1] == 6, "a base's JSON may have other spaces"


@given(MESSAGES, st.data())
def test_message_that_ends_early_or_late_is_refused(message: Message, draw: st.DataObject) -> None:
    data = encode_message(message)
    end = draw.draw(st.integers(0, len(data) - 1))
    for changed in (data[:end], data + b"x"):
        with pytest.raises(RemoteProtocolError):
            decode_message(changed)


@given(MESSAGES, st.data())
def test_damaged_message_is_read_or_refused_by_name(message: Message, draw: st.DataObject) -> None:
    data = bytearray(encode_message(message))
    data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    with contextlib.suppress(RemoteProtocolError):
        decode_message(bytes(data))


@pytest.mark.parametrize("head", ["0001", "0201", "0100", "0108", "01ff"])
def test_unknown_format_or_kind_is_refused(head: str) -> None:
    with pytest.raises(RemoteProtocolError, match="update replog"):
        decode_message(bytes.fromhex(head) + bytes(32))


def test_truth_of_other_value_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="neither 0 nor 1"):
        decode_message(bytes.fromhex("0104" "0000000000000008" "02"))  # fmt: skip


def test_members_nested_too_deep_are_refused() -> None:
    """Python's JSON raises RecursionError for these, which is not a ValueError."""
    data = encode_message(GOLDEN_COPY)[: 2 + 16 + 16] + b"[" * 100_000
    with pytest.raises(RemoteProtocolError):
        decode_message(data)
