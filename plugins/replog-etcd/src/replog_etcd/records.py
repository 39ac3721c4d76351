"""How keys and values stand in etcd, and the requests and answers that speak of them.

Layout, version 1: the key of replog `a/b` is etcd's key `/a/b`, with a prefix `/PREFIX/a/b`, in UTF-8; the value is as it is.
There is nothing else: no directories to make or to count, so each change is one comparison and one key, and `etcdctl get
--prefix /PREFIX/` shows all. A version is the key's `mod_revision`, which never repeats, even if the key is created again.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import attrs

from replog.errors import MetastoreCorruptError

Message = dict[str, Any]


@attrs.frozen
class Record:
    """One key of etcd, as it was at some revision. `value` is b"" if it was not asked for; `lease_id` 0: it stays permanently."""

    key: str
    value: bytes
    version: int
    created: int
    lease_id: int


class Layout:
    """From replog's keys to etcd's and back."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"/{prefix}/" if prefix else "/"

    def encode(self, key: str, ending: str = "") -> str:
        """etcd's key, as JSON has it; with something behind it, for the ends of ranges."""
        return _base64(f"{self._prefix}{key}{ending}".encode())

    def record(self, found: Mapping[str, Any]) -> Record:
        """Etcd's record of a key below the prefix. Raises `MetastoreCorruptError`."""
        raw = b""
        try:
            raw = base64.b64decode(found["key"])
            return Record(
                raw.decode().removeprefix(self._prefix),
                base64.b64decode(found.get("value", "")),
                int(found["mod_revision"]),
                int(found.get("create_revision", 0)),  # of a deletion there is none
                int(found.get("lease", 0)),
            )
        except UnicodeDecodeError as error:
            raise MetastoreCorruptError(f"etcd's key {raw!r} is not a key of replog: it is not UTF-8") from error
        except (KeyError, TypeError, ValueError) as error:
            raise MetastoreCorruptError(f"what etcd says of a key has not the form that is known: {found!r}") from error

    # -- requests -------------------------------------------------------------------------------------------------

    def is_absent(self, key: str) -> Message:
        """A comparison."""
        return {"key": self.encode(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}

    def is_present(self, key: str) -> Message:
        """A comparison."""
        return {"key": self.encode(key), "target": "CREATE", "result": "GREATER", "create_revision": "0"}

    def has_version(self, key: str, version: int) -> Message:
        """A comparison."""
        return {"key": self.encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(version)}

    def put(self, key: str, value: bytes, lease_id: int = 0) -> Message:
        """An operation."""
        operation = {"key": self.encode(key), "value": _base64(value)}
        return {"request_put": {**operation, "lease": str(lease_id)} if lease_id else operation}

    def delete(self, key: str) -> Message:
        """An operation."""
        return {"request_delete_range": {"key": self.encode(key)}}

    def look(self, key: str) -> Message:
        """An operation: the key without its value."""
        return {"request_range": {"key": self.encode(key), "keys_only": True}}

    def looked(self, answer: Mapping[str, Any]) -> Record | None:
        """The result of `look`, in the answer to a transaction."""
        try:
            found = answer["responses"][0]["response_range"].get("kvs", [])
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise MetastoreCorruptError(f"etcd's answer has not the form that is known: {answer!r}") from error
        return self.record(found[0]) if found else None


def revision_of(answer: Mapping[str, Any]) -> int:
    """The revision of the store at which an answer was given."""
    return int(answer["header"]["revision"])


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
