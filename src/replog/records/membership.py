"""How bookies stand in the metastore: where they can be reached while they live, and their cookies.

Keys: `bookies/ID` for bookies that take new entries, `read-only-bookies/ID` for those that don't. One that turns is
announced under the new key before it leaves the old one, so whoever finds it under both takes it for read-only.

An announcement (format 1) is a JSON object with `format`, `endpoints`, best first, `read_only`, and `lock`, the name of the
lock that the bookie holds on its directory.

A cookie, `cookies/ID`, says that the metastore knows this bookie (B4), and with `lost` that the bookie was declared lost
(B8a). As in `metadata`, a reader refuses a higher format, and any name in the list `required`
that it does not know; other names it ignores. Values are read strictly: what does not fit is `MetastoreCorruptError`,
never a guess.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import attrs

from replog.errors import MetastoreCorruptError

BOOKIES_KEY = "bookies"
READ_ONLY_BOOKIES_KEY = "read-only-bookies"
COOKIES_KEY = "cookies"
ADDRESS_FORMAT = 1
COOKIE_FORMAT = 1

_ADDRESS_NAMES = ("format", "required", "endpoints", "read_only", "lock", "problem", "has_failed")
_PROBLEM_CHARACTERS_MAX = 2000
_COOKIE_NAMES = ("format", "required", "lost", "loss_accepted")


@attrs.frozen
class Endpoint:
    """One way to a bookie: a transport's scheme, and an address that this transport understands."""

    scheme: str
    address: str

    def __str__(self) -> str:
        return f"{self.scheme}:{self.address}"


@attrs.frozen
class BookieAddress:
    """Where a bookie can be reached, as it announced it, best first, and whether it takes new entries. `lock` names the lock
    on its directory (`Storage.lock_name`). `problem` says why it takes none, and `has_failed` that it never will again: it
    has stopped (B10)."""

    endpoints: tuple[Endpoint, ...]
    read_only: bool = False
    lock: str | None = None
    problem: str = ""
    has_failed: bool = False


def announcement_key(bookie_id: str, *, read_only: bool) -> str:
    """Where a bookie is announced."""
    return f"{READ_ONLY_BOOKIES_KEY if read_only else BOOKIES_KEY}/{bookie_id}"


def encode_address(address: BookieAddress) -> bytes:
    """What a bookie announces."""
    endpoints = [[endpoint.scheme, endpoint.address] for endpoint in address.endpoints]
    fields = {"format": ADDRESS_FORMAT, "endpoints": endpoints, "read_only": address.read_only}
    if address.lock is not None:
        fields["lock"] = address.lock
    if address.problem:
        fields["problem"] = address.problem[:_PROBLEM_CHARACTERS_MAX]
    if address.has_failed:
        fields["has_failed"] = True
    return json.dumps(fields).encode()


def decode_address(key: str, value: bytes) -> BookieAddress:
    """Reads what stands under a bookie's key; below `READ_ONLY_BOOKIES_KEY` it is read-only, whatever it says of itself.
    Raises `MetastoreCorruptError`, naming the key."""
    fields = _read(key, value, ADDRESS_FORMAT, _ADDRESS_NAMES)
    pairs = fields.get("endpoints")
    if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
        raise _corrupt(key, f"its endpoints are no pairs of texts: {_shown(value)}")
    read_only = fields.get("read_only", False)
    if not isinstance(read_only, bool):
        raise _corrupt(key, f"read_only is {read_only!r}")
    lock = fields.get("lock")
    if lock is not None and not isinstance(lock, str):
        raise _corrupt(key, f"lock is {lock!r}")
    endpoints = tuple(Endpoint(scheme, address) for scheme, address in pairs)
    problem, has_failed = fields.get("problem", ""), fields.get("has_failed", False)
    if not isinstance(problem, str) or not isinstance(has_failed, bool):
        raise _corrupt(key, f"problem is {problem!r}, has_failed is {has_failed!r}")
    read_only = read_only or key.startswith(f"{READ_ONLY_BOOKIES_KEY}/")
    return BookieAddress(endpoints, read_only, lock, problem, has_failed)


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(each, str) for each in pair)


@attrs.frozen
class Cookie:
    """What the metastore says of a bookie, whether it runs or not. One that `is_lost` never serves again (B8a); with
    `is_loss_accepted` whoever declared that knew that confirmed entries may be gone with it."""

    is_lost: bool = False
    is_loss_accepted: bool = False


def cookie_key(bookie_id: str) -> str:
    """The key of a bookie's cookie."""
    return f"{COOKIES_KEY}/{bookie_id}"


def encode_cookie(cookie: Cookie) -> bytes:
    """The value of a bookie's cookie in the metastore."""
    fields: dict[str, object] = {"format": COOKIE_FORMAT}
    if cookie.is_lost:
        fields["lost"] = True
    if cookie.is_loss_accepted:
        fields["loss_accepted"] = True
    return json.dumps(fields).encode() + b"\n"


def decode_cookie(key: str, value: bytes) -> Cookie:
    """Reads the value of a bookie's cookie. Raises `MetastoreCorruptError`, naming the key."""
    fields = _read(key, value, COOKIE_FORMAT, _COOKIE_NAMES)
    lost, accepted = fields.get("lost", False), fields.get("loss_accepted", False)
    if not isinstance(lost, bool) or not isinstance(accepted, bool):
        raise _corrupt(key, f"lost is {lost!r}, loss_accepted is {accepted!r}")
    return Cookie(lost, accepted)


def _read(key: str, value: bytes, highest_format: int, known: Collection[str]) -> dict[str, Any]:
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError) as error:  # also a UnicodeDecodeError
        raise _corrupt(key, f"no JSON: {_shown(value)}") from error
    if not isinstance(fields, dict):
        raise _corrupt(key, f"no JSON object: {_shown(value)}")
    version = fields.get("format")
    if type(version) is not int or version < 1:
        raise _corrupt(key, f"its format is {version!r}")
    required = fields.get("required", [])
    unknown = [str(each) for each in required if each not in known] if isinstance(required, list) else ["required"]
    if version > highest_format:
        unreadable = f"its format is {version}, and this version of replog reads up to {highest_format}"
    elif unknown:
        unreadable = f"its fields {sorted(unknown)} must be understood, and this version of replog doesn't know them"
    else:
        return fields
    raise MetastoreCorruptError(f"key {key!r}: {unreadable}: a newer replog wrote it; upgrade this one")


def _corrupt(key: str, fault: str) -> MetastoreCorruptError:
    return MetastoreCorruptError(f"key {key!r}: no bookie's ({fault}). Look at the value; nothing was changed")


def _shown(value: bytes) -> str:
    return repr(value if len(value) <= 200 else value[:200] + b"...")
