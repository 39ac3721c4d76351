"""The records of bookies in the metastore: where they can be reached while they live, and their cookies.

A bookie announces itself under `bookies/ID` while it takes new entries, and under `read-only-bookies/ID` while it does not. When
it changes, it announces itself under the new key before it leaves the old one: a reader that finds both takes it for read-only.
A bookie that drains is announced below `read-only-bookies`, too, so that versions that know no draining use others.

An announcement (format 1) is a JSON object with `format`, `endpoints`, best first, `read_only`, `lock`, the name of the lock
that the bookie holds on its directory, `labels`, and `draining`, if an administrator drains it.

The cookie, `cookies/ID`, says that the metastore knows this bookie (B4), whether it runs or not. Its field `lost` says that
the bookie was declared lost (B8a), and `draining` that an administrator drains it. `labels` and `free_bytes` are what the
bookie last reported. By `token` and `times_raised` the bookie recognises its metastore (B6a). `encoding` says how readers treat
unknown formats and fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import trio

from replog.abc import Metastore
from replog.errors import MetastoreUncertainError, VersionConflictError
from replog.records.encoding import corrupt, read_fields
from replog.records.paths import LEDGER_ID_MAX

BOOKIES_KEY = "bookies"
READ_ONLY_BOOKIES_KEY = "read-only-bookies"
COOKIES_KEY = "cookies"
ADDRESS_FORMAT = 1
COOKIE_FORMAT = 1
AGAIN_S = 0.01  # after a lost answer

_ADDRESS_NAMES = (
    "format",
    "required",
    "endpoints",
    "read_only",
    "lock",
    "problem",
    "has_failed",
    "labels",
    "draining",
    "doubts_metastore",
    "ledgers_below",
)
_PROBLEM_CHARACTERS_MAX = 2000
_COOKIE_NAMES = (
    "format",
    "required",
    "lost",
    "loss_accepted",
    "draining",
    "labels",
    "free_bytes",
    "token",
    "times_raised",
)


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
    is True if it never takes any again, because it has stopped (B10). A bookie that `is_draining` takes entries unless it is
    `read_only`, too, but will be stopped permanently. One that `doubts_metastore` is `read_only`; `problem` says why (B6a).
    All ledgers that it ever held have ids below `ledgers_below`: no ledger gets a lower one any more (M5)."""

    endpoints: tuple[Endpoint, ...]
    read_only: bool = False
    lock: str | None = None
    problem: str = ""
    has_failed: bool = False
    labels: Mapping[str, str] = attrs.field(factory=dict)
    is_draining: bool = False
    doubts_metastore: bool = False
    ledgers_below: int = 0


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
    if address.labels:
        fields["labels"] = dict(address.labels)
    if address.is_draining:
        fields["draining"] = True
    if address.doubts_metastore:
        fields["doubts_metastore"] = True
    if address.ledgers_below:
        fields["ledgers_below"] = address.ledgers_below
    return json.dumps(fields).encode()


def decode_address(key: str, value: bytes) -> BookieAddress:
    """What a bookie announced under this key; read-only below `READ_ONLY_BOOKIES_KEY`, unless the value says that it drains.

    Raises `MetastoreCorruptError`, naming the key."""
    fields = read_fields(key, value, ADDRESS_FORMAT, _ADDRESS_NAMES)
    pairs = fields.get("endpoints")
    if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
        raise corrupt(key, [f"its endpoints are not pairs of texts: {pairs!r}"])
    read_only = _flag(key, fields, "read_only")
    lock = fields.get("lock")
    if lock is not None and not isinstance(lock, str):
        raise corrupt(key, [f"lock is {lock!r}"])
    endpoints = tuple(Endpoint(scheme, address) for scheme, address in pairs)
    problem, has_failed = fields.get("problem", ""), fields.get("has_failed", False)
    if not isinstance(problem, str) or not isinstance(has_failed, bool):
        raise corrupt(key, [f"problem is {problem!r}, has_failed is {has_failed!r}"])
    # The key decides, since a bookie that changes is announced under both keys for a moment. Only draining is announced
    # among the read-only ones without being it, so that older versions send no new ledgers there.
    labels, is_draining = _labels(key, fields), _flag(key, fields, "draining")
    read_only = read_only or (key.startswith(f"{READ_ONLY_BOOKIES_KEY}/") and not is_draining)
    doubts, below = _flag(key, fields, "doubts_metastore"), _number(key, fields, "ledgers_below")
    return BookieAddress(endpoints, read_only, lock, problem, has_failed, labels, is_draining, doubts, below)


def _labels(key: str, fields: Mapping[str, Any]) -> dict[str, str]:
    labels = fields.get("labels", {})
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise corrupt(key, [f"labels is {labels!r}"])
    return labels


def _flag(key: str, fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise corrupt(key, [f"{name} is {value!r}"])
    return value


def _number(key: str, fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name, 0)
    if type(value) is not int or not 0 <= value <= LEDGER_ID_MAX + 1:
        raise corrupt(key, [f"{name} is {value!r}"])
    return value


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(each, str) for each in pair)


@attrs.frozen
class Cookie:
    """What the metastore knows of a bookie, whether it runs or not.

    A bookie that `is_lost` never serves again (B8a). `is_loss_accepted` is True if the operator who declared it lost accepted
    that confirmed entries may be gone with it. One that `is_draining` will be stopped permanently. `labels` and `free_bytes` are
    what it reported when it last ran. The bookie made `token`, and raises the counter `times_raised`, so that it recognises a
    metastore that went back (B6a)."""

    is_lost: bool = False
    is_loss_accepted: bool = False
    is_draining: bool = False
    labels: Mapping[str, str] = attrs.field(factory=dict)
    free_bytes: int | None = None
    token: str = ""
    times_raised: int = 0


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
    if cookie.is_draining:
        fields["draining"] = True
    if cookie.labels:
        fields["labels"] = dict(cookie.labels)
    if cookie.free_bytes is not None:
        fields["free_bytes"] = cookie.free_bytes
    if cookie.token:
        fields["token"] = cookie.token
    if cookie.times_raised:
        fields["times_raised"] = cookie.times_raised
    return json.dumps(fields).encode() + b"\n"


def decode_cookie(key: str, value: bytes) -> Cookie:
    """Reads the value of a bookie's cookie. Raises `MetastoreCorruptError`, naming the key."""
    fields = read_fields(key, value, COOKIE_FORMAT, _COOKIE_NAMES)
    free_bytes = fields.get("free_bytes")
    if free_bytes is not None and type(free_bytes) is not int:
        raise corrupt(key, [f"free_bytes is {free_bytes!r}"])
    lost, accepted = _flag(key, fields, "lost"), _flag(key, fields, "loss_accepted")
    token, times_raised = fields.get("token", ""), _number(key, fields, "times_raised")
    if not isinstance(token, str):
        raise corrupt(key, [f"token is {token!r}"])
    return Cookie(lost, accepted, _flag(key, fields, "draining"), _labels(key, fields), free_bytes, token, times_raised)


async def change_cookie(metastore: Metastore, bookie_id: str, change: Callable[[Cookie], Cookie]) -> Cookie:
    """Replaces a bookie's cookie by what `change` makes of it, and returns that. `change` is applied again if somebody else was
    faster, or if it is not known whether the cookie was written: so it sets fields, and counts nothing.

    Raises `KeyNotFoundError` if there is no such bookie, `MetastoreCorruptError`, `MetastoreError`. If cancelled, it may be
    changed."""
    key = cookie_key(bookie_id)
    while True:
        found = await metastore.get(key)
        cookie = decode_cookie(key, found.value)
        wanted = change(cookie)
        if wanted == cookie:
            return cookie
        try:
            await metastore.put(key, encode_cookie(wanted), found.version)
        # Each conflict means that somebody else's change went through, so the loop makes progress.
        except VersionConflictError:
            continue
        # After a lost answer the cookie is read again: if it was written, `change` finds nothing left to do (M1).
        except MetastoreUncertainError:
            await trio.sleep(AGAIN_S)
            continue
        return wanted
