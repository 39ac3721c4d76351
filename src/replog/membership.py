"""How bookies announce themselves in the metastore, and where they can be reached."""

from __future__ import annotations

import json
from typing import Any

import attrs

from replog.errors import MetastoreCorruptError

BOOKIES_KEY = "bookies"


@attrs.frozen
class BookieAddress:
    """Where a bookie can be reached, as it announced it: transport scheme, address, whether it takes new entries."""

    scheme: str
    address: str
    read_only: bool = False


def encode_address(address: BookieAddress) -> bytes:
    """What a bookie announces."""
    return json.dumps({"format": 1, **attrs.asdict(address)}).encode()


def decode_address(bookie_id: str, value: bytes) -> BookieAddress:
    """Reads what a bookie announced. Raises `MetastoreCorruptError`."""
    try:
        fields: dict[str, Any] = json.loads(value)
        return BookieAddress(str(fields["scheme"]), str(fields["address"]), bool(fields.get("read_only", False)))
    except (ValueError, KeyError, TypeError) as error:
        raise MetastoreCorruptError(f"key '{BOOKIES_KEY}/{bookie_id}': no address of a bookie: {value!r}") from error
