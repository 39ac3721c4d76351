"""Changes: each is one conditional put, settled by its nonce (M1).

| the key | its object | create | put, delete |
|---|---|---|---|
| never was, or its tombstone is gone | none | a put that creates | KeyNotFoundError |
| exists | a value | KeyExistsError | a put that replaces this ETag, by a value or by a tombstone |
| was deleted | a tombstone | a put that replaces this ETag | KeyNotFoundError |

A change keeps its nonce through all attempts. When an attempt had no answer, the next one is made under the same condition: if
the first was done, the second is refused, and the object that is there has the nonce. If it has another nonce and a higher
version than the change would have given, the change may have been done and overwritten: only then is the outcome unknown,
before the deadline.

Versions of a key go on over a tombstone. Without one they begin with the time in microseconds: so they do not repeat, even
though a tombstone goes some time after the deletion.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import attrs

from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    MetastoreCorruptError,
    MetastoreError,
    MetastoreUncertainError,
    VersionConflictError,
)
from replog_objects.calls import Calls, Outcome, Pace
from replog_objects.layout import NAME_BYTES_MAX, Stored, name_of
from replog_objects.options import Target
from replog_objects.requests import Conflict, Effect, Found, RequestFailed, Requests, Tag

_KNOWN_MAX = 10_000
_ABSENT = "it does not exist"


@attrs.frozen
class Seen:
    """An object's content and its tag."""

    stored: Stored
    tag: Tag


@attrs.frozen
class Base:
    """The object that a change replaces, by its tag (None: no object), and the version that the change gives."""

    tag: Tag | None
    version: int


def _new_base() -> Base:
    return Base(None, time.time_ns() // 1000)


class Changes:
    """Reads and changes of single keys by one client."""

    def __init__(self, calls: Calls, target: Target) -> None:
        self._calls = calls
        self._target = target
        # The tags of versions that this client has seen: with one, a put need not read first. Advice: the condition decides.
        self._known: OrderedDict[str, tuple[int, Tag]] = OrderedDict()

    async def get(self, key: str) -> Seen | None:
        """The object of the key, perhaps a tombstone. Raises `MetastoreError`."""
        found = await self._calls.read(f"key {key!r}", partial(_get, name=self._name(key)))
        if found is not None:
            self._remember(key, found.stored.version, found.tag)
        return found

    async def create(self, key: str, value: bytes) -> int:
        """Raises `KeyExistsError`, `MetastoreError`."""

        def base(found: Seen | None) -> Base:
            if found is None:
                return _new_base()
            if found.stored.value is not None:
                raise KeyExistsError(key, "it exists already: nothing was written")
            return Base(found.tag, found.stored.version + 1)

        return await self._change(key, value, _new_base(), base)

    async def replace(self, key: str, value: bytes | None, expected: int | None) -> int:
        """Replaces the value, or by None deletes it. Raises `KeyNotFoundError`, `VersionConflictError`, `MetastoreError`."""

        def base(found: Seen | None) -> Base:
            if found is None or found.stored.value is None:
                raise KeyNotFoundError(key, _ABSENT)
            if expected not in (None, found.stored.version):
                raise VersionConflictError(key, expected, found.stored.version)
            return Base(found.tag, found.stored.version + 1)

        version, tag = self._known.get(key, (None, None))
        if version is None or version != expected:
            return await self._change(key, value, base(await self.get(key)), base)
        return await self._change(key, value, Base(tag, version + 1), base)

    async def _change(self, key: str, value: bytes | None, start: Base, base: Callable[[Seen | None], Base]) -> int:
        name, nonce, outcome, current = self._name(key), secrets.token_hex(16), Outcome(), start
        with self._calls.deadline(f"key {key!r}", outcome):
            pace = Pace()
            while await pace.next():
                body = Stored(current.version, nonce, value).encode()
                try:
                    tag = await self._calls.attempt(partial(_put, name=name, body=body, expected=current.tag), outcome)
                    self._remember(key, current.version, tag)
                    return current.version
                except RequestFailed as error:
                    self._check_refused(key, error, outcome)
                except Conflict:
                    found = await self._read_back(key, outcome)
                    if found is not None and found.stored.nonce == nonce:
                        return found.stored.version
                    if outcome.is_in_doubt and (found is None or found.stored.version > current.version):
                        raise self._uncertain(key, "it was changed again since") from None
                    current = base(found)
        raise AssertionError("attempts end by the deadline")

    async def _read_back(self, key: str, outcome: Outcome) -> Seen | None:
        try:
            return await self.get(key)
        except MetastoreCorruptError:
            raise
        except MetastoreError as error:
            # What is there may be of this change: a proxy may have made the attempt twice.
            raise self._uncertain(key, f"it could not be read back ({error})") from error

    def _check_refused(self, key: str, error: RequestFailed, outcome: Outcome) -> None:
        if error.effect is Effect.NONE:
            if outcome.is_in_doubt:
                raise self._uncertain(key, str(error)) from None
            raise self._calls.refused(f"key {key!r}", error) from None

    def _uncertain(self, key: str, why: str) -> MetastoreUncertainError:
        problem = f"an attempt was not answered, and {why}: it may have been written: read back before you go on"
        return MetastoreUncertainError(f"{self._target}: key {key!r}: {problem}")

    def _remember(self, key: str, version: int, tag: Tag) -> None:
        self._known[key] = version, tag
        self._known.move_to_end(key)
        while len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)

    def _name(self, key: str) -> str:
        name = name_of(key)
        if len(name) + len(self._target.prefix) + 1 > NAME_BYTES_MAX:
            problem = f"its object's name has more than {NAME_BYTES_MAX} bytes: use a shorter prefix, or plain letters"
            raise MetastoreError(f"{self._target}: key {key!r}: {problem}; nothing was done")
        return name


def _get(requests: Requests, name: str) -> Seen | None:
    found: Found | None = requests.get(name)
    return None if found is None else Seen(Stored.decode(found.body), found.tag)


def _put(requests: Requests, name: str, body: bytes, expected: Tag | None) -> Tag:
    return requests.put(name, body, expected)
