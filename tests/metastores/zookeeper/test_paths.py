"""Where keys stand in ZooKeeper: one node for each, whatever its words, and back again."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from replog.metastores.zookeeper.paths import Paths, decode_value, encode_value, escape, unescape
from replog.records.paths import ledger_key_path

SURROGATES_END = 0xF8FF


def is_refused_by_zookeeper(name: str) -> bool:
    """As `PathUtils.validatePath` of ZooKeeper 3.9 does, on UTF-16."""
    units = name.encode("utf-16-be")
    codes = [int.from_bytes(units[place : place + 2], "big") for place in range(0, len(units), 2)]
    return any(
        code == 0
        or code <= 0x1F
        or 0x7F <= code <= 0x9F
        or 0xD800 <= code <= SURROGATES_END
        or 0xFFF0 <= code <= 0xFFFF
        for code in codes
    ) or name in (".", "..")


words = st.text(st.characters().filter(str.isprintable), min_size=1).filter(
    lambda word: "/" not in word and word.strip(".") != ""
)
keys = st.lists(words, min_size=1, max_size=6).map("/".join)


@given(words)
@example("\\")
@example("\\1f600;")
@example("\U0001f600")
@example("\ufffd\ufffc")
def test_words_are_escaped_for_zookeeper_and_come_back(word: str) -> None:
    name = escape(word)
    assert not is_refused_by_zookeeper(name)
    assert "/" not in name
    assert unescape(name) == word


def test_every_printable_character_is_taken() -> None:
    printable = [chr(code) for code in range(0x110000) if chr(code).isprintable() and chr(code) != "/"]
    assert not [character for character in printable if is_refused_by_zookeeper(f"a{escape(character)}")]


@given(keys, keys, st.sampled_from(["", "/a/b"]), st.sampled_from(["hierarchical", "flat"]))
@example("ledgers/00/0000/0001", "ledgers/L0000000001", "", "flat")
@example("ledgers/00/0000/0001/x", "ledgers/L0000000001/x", "", "flat")
@example("layout", "\\6c;ayout", "/a/b", "hierarchical")
def test_two_keys_have_two_nodes(one: str, other: str, chroot: str, layout: str) -> None:
    paths = Paths(chroot, layout)
    assert (paths.node(one) == paths.node(other)) == (one == other)
    assert paths.node(one).startswith(f"{chroot}/")
    assert paths.node(one) != paths.layout_path


def test_foreign_nodes_are_never_keys() -> None:
    assert Paths("", "hierarchical").node("zookeeper/quota") == "/\\7a;ookeeper/quota"
    assert Paths("/a", "hierarchical").node("zookeeper/quota") == "/a/zookeeper/quota"
    assert Paths("/a", "hierarchical").node("layout") == "/a/\\6c;ayout"


@given(st.binary())
@example(b"")
@example(b"\0")
@example(b"\0\0x")
def test_no_value_is_taken_for_a_placeholder(value: bytes) -> None:
    data = encode_value(value)
    assert data != b""
    assert decode_value(data) == value
    assert data == value or value[:1] in (b"", b"\0")  # the usual ones stand there as they are


def test_parents_from_the_top() -> None:
    assert Paths("/a", "hierarchical").parents("/a/b/c") == ["/a", "/a/b"]
    assert Paths("", "hierarchical").parents("/b") == []


@pytest.mark.parametrize("ledger_id", [0, 7, 1234567890, 9999999999, 10**10, 2**63 - 1])
def test_flat_ledgers_are_listed_level_by_level(ledger_id: int) -> None:
    paths, key = Paths("/c", "flat"), ledger_key_path(ledger_id)
    words = key.split("/")
    directory, name = paths.node(key).rsplit("/", 1)
    assert directory == f"/c/{words[0]}"
    assert name == "L" + "".join(words[1:])
    for depth in range(1, len(words)):
        listing = paths.listings("/".join(words[:depth]))[0]
        assert listing.path == directory
        assert listing.words([name, "L1", "other"]) == {words[depth]} | ({"L1", "other"} if depth == 1 else set())
    assert paths.listings(key)[0].path == paths.node(key)


def test_flat_says_nothing_about_other_ledgers() -> None:
    listing = Paths("", "flat").listings("ledgers/00/0001")[0]
    assert listing.words(["L0000000001", "L0000010002", "L9900010003"]) == {"0002"}
