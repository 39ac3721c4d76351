"""Entries, bases and commands as bytes: what was written is read, and nothing else (Q20)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.errors import RemoteProtocolError
from replog.protocol.consensus.codec import decode_base, decode_entry, encode_base, encode_entry
from replog.protocol.consensus.commands import LEASE, Command, What, decode_commands, encode_commands
from replog.protocol.consensus.groups import Membership
from replog.protocol.consensus.log import Base, Kind, LogEntry

NAMES = st.text(min_size=1, max_size=8)
GROUPS = st.lists(st.lists(NAMES, min_size=1, max_size=5).map(tuple), min_size=1, max_size=2).map(tuple)
MEMBERS = st.builds(Membership, GROUPS, st.dictionaries(NAMES, NAMES, max_size=3))
TERMS = st.integers(0, (1 << 64) - 1)
COMMANDS = st.lists(
    st.builds(
        Command,
        st.binary(min_size=16, max_size=16),
        TERMS,
        st.sampled_from(What),
        st.text(max_size=40),
        st.binary(min_size=LEASE.size, max_size=60),
        st.none() | st.integers(0, (1 << 63) - 1),
    ),
    max_size=5,
)


@given(TERMS, st.sampled_from([Kind.NOOP, Kind.COMMANDS]), st.binary(max_size=100))
def test_entry_is_read_as_it_was_written(term: int, kind: Kind, body: bytes) -> None:
    entry = LogEntry(term, kind, body)
    assert decode_entry(encode_entry(entry)) == entry


@given(TERMS, st.sampled_from([Kind.CHANGE, Kind.SETTLE]), MEMBERS)
def test_entry_about_members_is_read_as_it_was_written(term: int, kind: Kind, members: Membership) -> None:
    entry = LogEntry(term, kind, members=members)
    assert decode_entry(encode_entry(entry)) == entry


@given(TERMS, TERMS, MEMBERS)
def test_base_is_read_as_it_was_written(index: int, term: int, members: Membership) -> None:
    assert decode_base(encode_base(Base(index, term, members))) == Base(index, term, members)


@given(TERMS, COMMANDS)
def test_commands_are_read_as_they_were_written(stamp_ms: int, commands: list[Command]) -> None:
    assert decode_commands(encode_commands(stamp_ms, commands)) == (stamp_ms, commands)


@given(st.binary(max_size=80))
def test_other_bytes_are_refused_by_name(data: bytes) -> None:
    for decode in (decode_entry, decode_base, decode_commands):
        try:
            decode(data)
        except RemoteProtocolError:
            continue


def test_unknown_format_or_kind_is_refused() -> None:
    data = bytearray(encode_entry(LogEntry(1, Kind.NOOP)))
    for place in (0, 1):
        changed = bytes(data[:place] + bytes([9]) + data[place + 1 :])
        with pytest.raises(RemoteProtocolError, match="update replog"):
            decode_entry(changed)
    body = bytearray(encode_commands(0, [Command(bytes(16), 0, What.PUT, "k")]))
    body[24 + 4 + 16 + 8] = 99
    with pytest.raises(RemoteProtocolError, match="no commands"):
        decode_commands(bytes(body))


def test_damaged_entry_is_refused() -> None:
    data = bytearray(encode_entry(LogEntry(1, Kind.COMMANDS, b"body")))
    data[-1] ^= 1
    with pytest.raises(RemoteProtocolError, match="CRC32C"):
        decode_entry(bytes(data))
