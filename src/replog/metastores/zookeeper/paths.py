"""The nodes of keys in ZooKeeper, and the encoding of values in nodes.

Rules: a key's words are a node's path below the chroot, and its value is the node's data, so that `zkCli` shows both as
they are. Characters that ZooKeeper refuses in a path are escaped as `\\HEX;`, and so are the backslash, and the first
words that are not ours to use ("layout"; at the root also "zookeeper"). A node without data is a *placeholder*, there
only for the nodes below it; so an empty value is stored as one zero byte, and a value that begins with one gets another
in front.

The flat layout (M2, deprecated) has `ledgers/L0000000123` instead of `ledgers/00/0000/0123`: only here is that known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import attrs

LAYOUT_WORD = "layout"
PLACEHOLDER = b""

_FLAT_SHAPES = {"ledgers": (2, 4, 4), "long-ledgers": (3, 4, 4, 4, 4)}
_FLAT_NAME = re.compile(r"L(\d+)", re.ASCII)

# Printable, and yet refused by ZooKeeper: two specials, and all that UTF-16 needs two units for.
_REFUSED = re.compile("[\\\\\ufffc\ufffd\U00010000-\U0010ffff]")
_ESCAPED = re.compile(r"\\([0-9a-f]+);")


def encode_value(value: bytes) -> bytes:
    """The data of the node of a key with this value; never empty."""
    return b"\0" + value if value[:1] in (b"", b"\0") else bytes(value)


def decode_value(data: bytes) -> bytes:
    """The value of the key whose node has this data, which is not empty."""
    return data[1:] if data[:1] == b"\0" else data


def escape(word: str) -> str:
    """The name of the node for this word of a key."""
    return _REFUSED.sub(lambda found: _escaped(found[0]), word)


def unescape(name: str) -> str:
    """The word of a key for this name of a node."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name)


def _escaped(character: str) -> str:
    return f"\\{ord(character):x};"


@attrs.frozen
class Listing:
    """One directory to list, and the word that the name of a node in it stands for; None if it is none of those asked for."""

    path: str
    word: Callable[[str], str | None]

    def words(self, names: Iterable[str]) -> set[str]:
        """The words for these nodes."""
        return {word for word in map(self.word, names) if word is not None}


class Paths:
    """The paths of one chroot: "" for the root, or "/a/b"."""

    def __init__(self, chroot: str, layout: str) -> None:
        self.chroot = chroot
        self.layout_path = f"{chroot}/{LAYOUT_WORD}"
        self._is_flat = layout == "flat"
        self._reserved = {LAYOUT_WORD} if chroot else {LAYOUT_WORD, "zookeeper"}

    def node(self, key: str) -> str:
        """The path of the node of this key."""
        names = self._names(key.split("/"))
        return "/".join((self.chroot, *names))

    def parents(self, path: str) -> list[str]:
        """The nodes that must exist above this path, from the top."""
        places = [place for place, character in enumerate(path) if character == "/" and place]
        return [path[:place] for place in places]

    def is_below_chroot(self, path: str) -> bool:
        """True if a node may be removed when it is no longer needed; the chroot itself stays."""
        return path.startswith(f"{self.chroot}/")

    def listings(self, key: str) -> list[Listing]:
        """The directories that contain the children of this key."""
        words = key.split("/")
        shape = self._flat_shape(words[0])
        if shape is None or len(words) > len(shape) or not _fits(words[1:], shape):
            return [Listing(self.node(key), unescape)]
        ledgers = Listing(f"{self.chroot}/{words[0]}", lambda name: _flat_word(name, words, shape))
        return [ledgers] if len(words) == 1 else [ledgers, Listing(self.node(key), unescape)]

    def _flat_shape(self, first: str) -> Sequence[int] | None:
        return _FLAT_SHAPES.get(first) if self._is_flat else None

    def _names(self, words: list[str]) -> list[str]:
        names = [escape(word) for word in words]
        if words[0] in self._reserved:
            names[0] = _escaped(words[0][0]) + escape(words[0][1:])
        shape = self._flat_shape(words[0])
        if shape is None or len(words) == 1:
            return names
        if len(words) > len(shape) and _fits(words[1:], shape):
            return [names[0], "L" + "".join(words[1 : len(shape) + 1]), *names[len(shape) + 1 :]]
        # Not a ledger, though its key looks like one's node.
        if _FLAT_NAME.fullmatch(words[1]):
            names[1] = _escaped("L") + words[1][1:]
        return names


def _fits(words: Sequence[str], shape: Sequence[int]) -> bool:
    """Whether these words, or as many as there are in the shape, are digits of its widths."""
    pairs = zip(words, shape, strict=False)
    return all(len(word) == width and word.isascii() and word.isdigit() for word, width in pairs)


def _flat_word(name: str, words: list[str], shape: Sequence[int]) -> str | None:
    """The words that follow these in the key of the ledger with this node, or of another node among the ledgers."""
    match = _FLAT_NAME.fullmatch(name)
    if match is None or len(match[1]) != sum(shape):
        return unescape(name) if len(words) == 1 else None
    starts = [sum(shape[:place]) for place in range(len(shape))]
    parts = [match[1][start : start + width] for start, width in zip(starts, shape, strict=True)]
    depth = len(words) - 1
    return parts[depth] if parts[:depth] == words[1:] else None
