"""The form of keys and values in every metastore, checked before anything is sent, so that all stores agree."""

from __future__ import annotations

import attrs

from replog.errors import LocalProtocolError, MetastoreError

KEY_BYTES_MAX = 480  # the smallest limit of any store (LMDB: 511 bytes), less what a store adds of its own
VALUE_BYTES_MAX = 1_000_000  # ZooKeeper drops the connection at 1 MiB; the contract promises 512 KiB


@attrs.frozen
class Versioned:
    """A value and the version it has. Versions of one key never repeat while the key exists; a key that was deleted and
    created again may have them again."""

    value: bytes
    version: int


def check_key(key: str) -> None:
    """Raises `LocalProtocolError` unless the key is printable words joined by "/", in at most 480 bytes."""
    if not key.isprintable() or not all(word.strip(".") for word in key.split("/")):
        raise LocalProtocolError(
            f"{key!r} is not a key: a key is printable words joined by '/', none of them empty or dots"
        )
    if len(key.encode()) > KEY_BYTES_MAX:
        raise LocalProtocolError(f"the key {key[:60]!r}... has {len(key.encode())} bytes; {KEY_BYTES_MAX} are allowed")


def check_value(key: str, value: bytes) -> None:
    """Raises `MetastoreError` if the value is larger than every metastore can take."""
    if len(value) > VALUE_BYTES_MAX:
        raise MetastoreError(
            f"key {key!r}: {len(value)} bytes exceed the {VALUE_BYTES_MAX} that a value may have; nothing was written. "
            "Put less into the record, such as into its custom metadata"
        )
