"""How bookies announce themselves in the metastore, and where they can be reached.

Format 2: a JSON object with `endpoints`, best first, and `read_only`. Format 1 had one endpoint, and is read as such.
"""

from __future__ import annotations

import json
from typing import Any

import attrs

from replog.errors import MetastoreCorruptError

BOOKIES_KEY = "bookies"


@attrs.frozen
class Endpoint:
    """One way to a bookie: a transport's scheme, and an address that this transport understands."""

    scheme: str
    address: str

    def __str__(self) -> str:
        return f"{self.scheme}:{self.address}"


@attrs.frozen
class BookieAddress:
    """Where a bookie can be reached, as it announced it, best first, and whether it takes new entries."""

    endpoints: tuple[Endpoint, ...]
    read_only: bool = False


def encode_address(address: BookieAddress) -> bytes:
    """What a bookie announces."""
    endpoints = [[endpoint.scheme, endpoint.address] for endpoint in address.endpoints]
    return json.dumps({"format": 2, "endpoints": endpoints, "read_only": address.read_only}).encode()


def decode_address(bookie_id: str, value: bytes) -> BookieAddress:
    """Reads what a bookie announced. Raises `MetastoreCorruptError`."""
    try:
        fields: dict[str, Any] = json.loads(value)
        if "endpoints" in fields:
            pairs = [(scheme, address) for scheme, address in fields["endpoints"]]
        else:
            pairs = [(fields["scheme"], fields["address"])]
        endpoints = tuple(Endpoint(str(scheme), str(address)) for scheme, address in pairs)
        return BookieAddress(endpoints, bool(fields.get("read_only", False)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MetastoreCorruptError(f"key '{BOOKIES_KEY}/{bookie_id}': no address of a bookie: {value!r}") from error
