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
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from replog.abc import Metastore
from replog.records.editing import edit
from replog.records.encoding import converter, corrupt, read_fields, structure
from replog.records.paths import LEDGER_ID_MAX

BOOKIES_KEY = "bookies"
READ_ONLY_BOOKIES_KEY = "read-only-bookies"
COOKIES_KEY = "cookies"
ADDRESS_FORMAT = 1
COOKIE_FORMAT = 1

_PROBLEM_CHARACTERS_MAX = 2000


@attrs.frozen
class Endpoint:
    """One way to a bookie: a transport's scheme, and an address that this transport understands."""

    scheme: str
    address: str

    def __str__(self) -> str:
        return f"{self.scheme}:{self.address}"


@attrs.frozen
class BookieAddress:
    """The announcement of a bookie: its addresses, best first, and whether it takes new entries.

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
    told = attrs.evolve(address, problem=address.problem[:_PROBLEM_CHARACTERS_MAX])
    return json.dumps({"format": ADDRESS_FORMAT, **converter.unstructure(told)}).encode()


def decode_address(key: str, value: bytes) -> BookieAddress:
    """Decodes the announcement of a bookie under this key; read-only below `READ_ONLY_BOOKIES_KEY`, unless the value
    says that it drains.

    Raises `MetastoreCorruptError`, naming the key."""
    fields = read_fields(key, value, ADDRESS_FORMAT, _names_of(BookieAddress))
    if not isinstance(fields.get("endpoints"), list):
        raise corrupt(key, [f"its endpoints are not pairs of texts: {fields.get('endpoints')!r}"])
    address = structure(key, fields, BookieAddress, _WRITTEN_AS)
    _check_number(key, "ledgers_below", address.ledgers_below)
    # The key decides, since a bookie that changes is announced under both keys for a moment. Only draining is announced
    # among the read-only ones without being it, so that older versions send no new ledgers there.
    is_below = key.startswith(f"{READ_ONLY_BOOKIES_KEY}/") and not address.is_draining
    return attrs.evolve(address, read_only=address.read_only or is_below)


def _check_number(key: str, name: str, value: int) -> None:
    if not 0 <= value <= LEDGER_ID_MAX + 1:
        raise corrupt(key, [f"{name} is {value}"])


@attrs.frozen
class Cookie:
    """The metastore's record of a bookie, whether it runs or not.

    A bookie that `is_lost` never serves again (B8a). `is_loss_accepted` is True if the operator who declared it lost
    accepted that confirmed entries may be gone with it. One that `is_draining` will be stopped permanently. `labels`
    and `free_bytes` are from its last run. The bookie made `token`, and raises the counter `times_raised`, so that it
    recognises a metastore that went back (B6a)."""

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
    return json.dumps({"format": COOKIE_FORMAT, **converter.unstructure(cookie)}).encode() + b"\n"


def decode_cookie(key: str, value: bytes) -> Cookie:
    """Reads the value of a bookie's cookie. Raises `MetastoreCorruptError`, naming the key."""
    cookie = structure(key, read_fields(key, value, COOKIE_FORMAT, _names_of(Cookie)), Cookie, _WRITTEN_AS)
    _check_number(key, "times_raised", cookie.times_raised)
    return cookie


async def change_cookie(metastore: Metastore, bookie_id: str, change: Callable[[Cookie], Cookie]) -> Cookie:
    """Replaces a bookie's cookie by what `change` makes of it, and returns that. `change` is applied again if another
    client was faster, or if it is not known whether the cookie was written: so it sets fields, and counts nothing.

    Raises `KeyNotFoundError` if there is no such bookie, `MetastoreCorruptError`, `MetastoreError`. If cancelled, it may be
    changed."""
    key = cookie_key(bookie_id)

    async def read() -> tuple[Cookie, int]:
        found = await metastore.get(key)
        return decode_cookie(key, found.value), found.version

    async def changed(cookie: Cookie) -> Cookie | None:
        wanted = change(cookie)
        return None if wanted == cookie else wanted

    return await edit(read, changed, lambda cookie, version: metastore.put(key, encode_cookie(cookie), version))


# -- how they are written -----------------------------------------------------------------------------------------

_WRITTEN_AS = {"is_lost": "lost", "is_loss_accepted": "loss_accepted", "is_draining": "draining"}


def _names_of(record_type: type[attrs.AttrsInstance]) -> list[str]:
    return [_WRITTEN_AS.get(field.name, field.name) for field in attrs.fields(record_type)]


def _register(record_type: type[attrs.AttrsInstance]) -> None:
    """Defaults are left out. `read_only` is always written: people look for it."""
    overrides: dict[str, Any] = {
        field.name: override(rename=_WRITTEN_AS.get(field.name), omit_if_default=field.name != "read_only")
        for field in attrs.fields(record_type)
    }
    converter.register_unstructure_hook(record_type, make_dict_unstructure_fn(record_type, converter, **overrides))
    converter.register_structure_hook(record_type, make_dict_structure_fn(record_type, converter, **overrides))


def _structure_endpoint(value: Any, _type: type) -> Endpoint:
    if not isinstance(value, list) or [type(each) for each in value] != [str, str]:
        raise TypeError(f"{value!r} is not a pair of texts")
    return Endpoint(*value)


converter.register_structure_hook(Endpoint, _structure_endpoint)
converter.register_unstructure_hook(Endpoint, attrs.astuple)
_register(BookieAddress)
_register(Cookie)
