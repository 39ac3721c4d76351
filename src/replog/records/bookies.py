"""The records of bookies in the metastore: where they can be reached while they live, and their cookies.

A bookie announces itself under `bookies/ID` while it takes new entries, and under `read-only-bookies/ID` while it does not. When
it changes, it announces itself under the new key before it leaves the old one: a reader that finds both takes it for read-only.

An announcement (format 1) is a JSON object with `format`, `endpoints`, best first, `read_only`, and `lock`, the name of the
lock that the bookie holds on its directory.

The cookie, `cookies/ID`, says that the metastore knows this bookie (B4); its field `lost` says that the bookie was declared lost
(B8a). What readers do with formats and fields that they do not know: see `encoding`.
"""

from __future__ import annotations

import json

import attrs

from replog.records.encoding import corrupt, read_fields

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
    """What a bookie announced: where it can be reached, best first, and whether it takes new entries.

    `lock` names the lock on its directory (`Storage.lock_name`). `problem` says why the bookie takes no entries. `has_failed`
    is True if it never takes any again, because it has stopped (B10)."""

    endpoints: tuple[Endpoint, ...]
    read_only: bool = False
    lock: str | None = None
    problem: str = ""
    has_failed: bool = False


def announcement_key(bookie_id: str, *, read_only: bool) -> str:
    """The key under which a bookie announces itself."""
    return f"{READ_ONLY_BOOKIES_KEY if read_only else BOOKIES_KEY}/{bookie_id}"


def encode_address(address: BookieAddress) -> bytes:
    """The value of a bookie's announcement."""
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
    """What a bookie announced under this key; read-only below `READ_ONLY_BOOKIES_KEY`, whatever the value says.

    Raises `MetastoreCorruptError`, naming the key."""
    fields = read_fields(key, value, ADDRESS_FORMAT, _ADDRESS_NAMES)
    pairs = fields.get("endpoints")
    if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
        raise corrupt(key, [f"its endpoints are not pairs of texts: {pairs!r}"])
    read_only = fields.get("read_only", False)
    if not isinstance(read_only, bool):
        raise corrupt(key, [f"read_only is {read_only!r}"])
    lock = fields.get("lock")
    if lock is not None and not isinstance(lock, str):
        raise corrupt(key, [f"lock is {lock!r}"])
    endpoints = tuple(Endpoint(scheme, address) for scheme, address in pairs)
    problem, has_failed = fields.get("problem", ""), fields.get("has_failed", False)
    if not isinstance(problem, str) or not isinstance(has_failed, bool):
        raise corrupt(key, [f"problem is {problem!r}, has_failed is {has_failed!r}"])
    read_only = read_only or key.startswith(f"{READ_ONLY_BOOKIES_KEY}/")
    return BookieAddress(endpoints, read_only, lock, problem, has_failed)


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(each, str) for each in pair)


@attrs.frozen
class Cookie:
    """What the metastore knows of a bookie, whether it runs or not.

    A bookie that `is_lost` never serves again (B8a). `is_loss_accepted` is True if the operator who declared it lost accepted
    that confirmed entries may be gone with it."""

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
    fields = read_fields(key, value, COOKIE_FORMAT, _COOKIE_NAMES)
    lost, accepted = fields.get("lost", False), fields.get("loss_accepted", False)
    if not isinstance(lost, bool) or not isinstance(accepted, bool):
        raise corrupt(key, [f"lost is {lost!r}, loss_accepted is {accepted!r}"])
    return Cookie(lost, accepted)
