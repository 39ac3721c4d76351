"""The requests of clients to members, and their answers, as bytes.

    question   kind (u8); then a key, or a command as in an entry, or JSON
    answer     kind (u8); then, for FOUND, the index that the state has (u64), and what was asked for

Kinds of a later version are refused, never guessed.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import attrs

from replog.abc import ValuesPage, Versioned
from replog.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from replog.protocol.consensus.commands import Command, Outcome, decode_commands, encode_commands
from replog.runtime.keys import KEY_BYTES_MAX, check_key

PLACE_BYTES_MAX = (
    508  # of a key and the prefix before it: LMDB takes 511, and a member searches behind a key with three more
)

_KIND = struct.Struct(">B")
_FOUND = struct.Struct(">BQ")
_VERSION = struct.Struct(">Q")
_NAMED = struct.Struct(">HQI")  # sizes of the word and the value, and the version between
_NEXT = struct.Struct(">H")  # size of the word with which the next page begins; 0: there is none
PAGE_VALUES_MAX, _PAGE_BYTES_MAX = 1000, 1 << 20  # a larger page would keep the leader from its members for too long


def check_prefix(prefix: str) -> None:
    """Raises `ConfigError` unless every key of the contract has room behind this prefix."""
    bytes_max = PLACE_BYTES_MAX - KEY_BYTES_MAX - len("/")
    try:
        if prefix:
            check_key(prefix)
        if len(prefix.encode()) > bytes_max:
            raise ConfigError(f"the prefix {prefix!r} has {len(prefix.encode())} bytes; {bytes_max} are allowed")
    except LocalProtocolError as error:
        raise ConfigError(f"the prefix of a metastore: {error}") from error


class QuestionKind(enum.IntEnum):
    """The kinds of questions. Their numbers pass over the wire."""

    GET = 1
    CHILDREN = 2
    VALUES = 3
    CHANGE = 4
    STATUS = 5
    ADD = 6  # these need the role of an administrator
    REMOVE = 7
    REPLACE = 8
    ANNOUNCED = 9
    BEAT = 10  # the holder of an announced key lives
    WAIT = 11  # answered once the key has changed, or after a while


OF_ADMINISTRATORS = frozenset((QuestionKind.ADD, QuestionKind.REMOVE, QuestionKind.REPLACE))
OF_PAGES = frozenset((QuestionKind.VALUES, QuestionKind.ANNOUNCED))
# And with a key, where it is about one.
_WITH_FACTS = OF_ADMINISTRATORS | OF_PAGES | {QuestionKind.BEAT, QuestionKind.WAIT}


class AnswerKind(enum.IntEnum):
    """The kinds of answers. Their numbers pass over the wire."""

    FOUND = 1
    MISSING = 2  # the key does not exist
    NOT_LEADER = 3  # nothing was done: ask the leader
    UNKNOWN = 4  # it was begun, and its outcome is unknown: ask again with the same token
    BUSY = 5  # nothing was done: later
    REFUSED = 6  # nothing was done, for a reason that people read
    UNCHANGED = 7  # nothing has changed while it was waited for: ask again


@attrs.frozen
class Question:
    """A question of a client: about a key, with a command, or with facts."""

    kind: QuestionKind
    key: str = ""
    command: Command | None = None
    facts: Mapping[str, Any] = attrs.field(factory=dict)

    def encode(self) -> bytes:
        """The bytes that `decode` reads."""
        if self.kind is QuestionKind.CHANGE:
            assert self.command is not None, "a change has a command"
            return _KIND.pack(self.kind) + encode_commands(0, (self.command,))
        about = {"key": self.key} if self.key else {}
        rest = json.dumps({**about, **self.facts}) if self.kind in _WITH_FACTS else self.key
        return _KIND.pack(self.kind) + rest.encode()

    def page(self) -> tuple[str, int]:
        """The first word of a page, and how many values it may have. Raises `RemoteProtocolError`."""
        first, count_max = self.facts.get("first", ""), self.facts.get("count_max", PAGE_VALUES_MAX)
        if not isinstance(first, str) or type(count_max) is not int or count_max < 1:
            raise RemoteProtocolError(f"a page of {count_max!r} values from {first!r} on")
        return first, min(count_max, PAGE_VALUES_MAX)

    @staticmethod
    def decode(data: bytes) -> Question:
        """Raises `RemoteProtocolError`."""
        try:
            kind = QuestionKind(data[0])
            if kind is QuestionKind.CHANGE:
                _, (command,) = decode_commands(data[1:])
                return Question(kind, command=command)
            text = data[1:].decode()
            if kind in _WITH_FACTS:
                facts = dict(json.loads(text))
                return Question(kind, str(facts.pop("key", "")), facts=facts)
            return Question(kind, text)
        except (ValueError, IndexError, TypeError, RecursionError) as error:
            raise RemoteProtocolError(f"{len(data)} bytes are no question to a metastore: {error}") from error


@attrs.frozen
class Answer:
    """An answer that was read: `payload` is for the reader that its question calls for."""

    kind: AnswerKind
    index: int = 0
    payload: bytes = b""

    @staticmethod
    def decode(data: bytes) -> Answer:
        """Raises `RemoteProtocolError`."""
        try:
            kind = AnswerKind(data[0])
            if kind in (AnswerKind.FOUND, AnswerKind.MISSING):
                _, index = _FOUND.unpack_from(data)
                return Answer(kind, index, data[_FOUND.size :])
            return Answer(kind, 0, data[1:])
        except (ValueError, IndexError, struct.error) as error:
            raise RemoteProtocolError(f"{len(data)} bytes are no answer of a metastore: {error}") from error

    # -- what an answer's payload says: each raises `RemoteProtocolError` ---------------------------------------------

    @property
    def text(self) -> str:
        """The reason of a refusal."""
        return self.payload.decode("utf-8", "replace")

    def facts(self) -> dict[str, Any]:
        """A JSON object."""
        try:
            return dict(json.loads(self.payload or b"{}"))
        except (ValueError, TypeError, RecursionError) as error:
            raise RemoteProtocolError(f"an answer of a metastore has no facts: {error}") from error

    def members(self) -> tuple[str | None, tuple[str, ...]]:
        """The leader's address, if it is known, and those of all members."""
        facts = self.facts()
        leader, addresses = facts.get("leader"), facts.get("members", ())
        if not isinstance(addresses, list) or not isinstance(leader, str | None):
            raise RemoteProtocolError("an answer of a metastore does not name its members")
        return leader or None, tuple(map(str, addresses))

    def versioned(self) -> Versioned:
        """The value of a key."""
        return Versioned(self.payload[_VERSION.size :], _number(self.payload))

    def words(self) -> list[str]:
        """Children."""
        try:
            return self.payload.decode().split("/") if self.payload else []
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"an answer of a metastore has no words: {error}") from error

    def page(self) -> ValuesPage:
        """Values by their last words."""
        found = {}
        try:
            (next_bytes,) = _NEXT.unpack_from(self.payload)
            at = _NEXT.size + next_bytes
            next_first = self.payload[_NEXT.size : at].decode() or None
            while at < len(self.payload):
                word_bytes, version, value_bytes = _NAMED.unpack_from(self.payload, at)
                at += _NAMED.size
                word = self.payload[at : at + word_bytes].decode()
                at += word_bytes
                found[word] = Versioned(self.payload[at : at + value_bytes], version)
                at += value_bytes
            if at > len(self.payload):
                raise ValueError(f"{at - len(self.payload)} bytes are missing")
        except (struct.error, ValueError) as error:
            raise RemoteProtocolError(f"an answer of a metastore ends within a value: {error}") from error
        return ValuesPage(found, next_first)

    def outcome(self) -> Outcome:
        """The outcome of a command."""
        try:
            return Outcome.decode(self.payload)
        except (struct.error, ValueError) as error:
            raise RemoteProtocolError(f"an answer of a metastore has no outcome: {error}") from error


def _number(payload: bytes) -> int:
    try:
        (number,) = _VERSION.unpack_from(payload)
    except struct.error as error:
        raise RemoteProtocolError("an answer of a metastore has no version") from error
    return int(number)


# -- answers, as a member makes them ------------------------------------------------------------------------------------


def found(index: int, payload: bytes) -> bytes:
    """What was asked for, as of this index."""
    return _FOUND.pack(AnswerKind.FOUND, index) + payload


def missing(index: int) -> bytes:
    """The key does not exist, as of this index."""
    return _FOUND.pack(AnswerKind.MISSING, index)


def other(kind: AnswerKind, text: str = "") -> bytes:
    """An answer that found nothing."""
    return _KIND.pack(kind) + text.encode()


def not_leader(leader: str | None, addresses: Sequence[str]) -> bytes:
    """The leader's address, if this member knows it, and those of all members."""
    facts = {"leader": leader, "members": list(addresses)}
    return _KIND.pack(AnswerKind.NOT_LEADER) + json.dumps(facts).encode()


def facts(found: Mapping[str, Any]) -> bytes:
    """A JSON object, for administrators."""
    return _FOUND.pack(AnswerKind.FOUND, 0) + json.dumps(dict(found)).encode()


def value_payload(version: int, value: bytes) -> bytes:
    """A key's version and value."""
    return _VERSION.pack(version) + value


def words_payload(words: Sequence[str]) -> bytes:
    """Children. No word has a slash."""
    return "/".join(words).encode()


def digest_of(words: Sequence[str]) -> str:
    """A digest of children: whether they have changed is asked by that."""
    return blake2b(words_payload(words), digest_size=16).hexdigest()


def page_payload(values: Iterable[tuple[str, int, bytes]], count_max: int) -> bytes:
    """The first of these values with their last words and versions: one, and as many more as a page takes."""
    pieces, next_first, size_bytes = list[bytes](), b"", 0
    for count, (word, version, value) in enumerate(values):
        name = word.encode()
        size_bytes += _NAMED.size + len(name) + len(value)
        if count == count_max or (count and size_bytes > _PAGE_BYTES_MAX):
            next_first = name
            break
        pieces += (_NAMED.pack(len(name), version, len(value)), name, value)
    return b"".join((_NEXT.pack(len(next_first)), next_first, *pieces))
