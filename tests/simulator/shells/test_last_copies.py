"""The oracle of last copies says so when the record stops naming them, and when they are dropped."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from replog.abc import DropEntries
from replog.protocol.digest import DigestType
from replog.protocol.model import Fragment, LedgerMetadata
from replog.protocol.quorum import Quorum
from replog.records.encoding import encode
from replog.records.paths import ledger_key_path
from tests.simulator.shells.last_copies import LastCopies

RECORD = LedgerMetadata(7, Quorum(2, 2, 1), DigestType.CRC32C, "", (Fragment(0, ("a", "b")),)).closed_at(1)
MOVED = attrs.evolve(RECORD, fragments=(Fragment(0, ("c", "b")),))


@attrs.define
class Content:
    bookie_id: str


@attrs.define
class Disk:
    content: Content
    has: bool

    def stores(self, _ledger_id: int, _entry_id: int, _stamp: int) -> bool:
        return self.has


@attrs.define
class Host:
    disk: Disk
    is_gone: bool = False


class World:
    def __init__(self) -> None:
        self.rules: list[str] = []

    def violated(self, rule: str, _problem: str) -> None:
        self.rules.append(rule)

    def count(self, _what: str) -> None: ...


def seen(having: str, happens: Callable[[LastCopies, dict[str, Host]], None]) -> list[str]:
    """The rules that are broken, if these bookies have the entries."""
    world, hosts = World(), {name: Host(Disk(Content(name), name in having)) for name in "abc"}
    oracle = LastCopies(world, hosts, lambda _ledger_id: RECORD)  # type: ignore[arg-type]
    happens(oracle, hosts)
    return sorted(set(world.rules))


@pytest.mark.parametrize(("having", "broken"), [("a", ["F1"]), ("ab", []), ("ac", []), ("", []), ("b", [])])
def test_record_without_the_last_copy_is_seen(having: str, broken: list[str]) -> None:
    def change(oracle: LastCopies, _hosts: dict[str, Host]) -> None:
        oracle.changing(ledger_key_path(7), encode(MOVED))

    assert seen(having, change) == broken


@pytest.mark.parametrize(("name", "broken"), [("a", ["F5"]), ("c", [])])
def test_drop_of_a_named_copy_is_seen(name: str, broken: list[str]) -> None:
    def drop(oracle: LastCopies, hosts: dict[str, Host]) -> None:
        oracle.dropping(hosts[name], DropEntries(7, 1, 0, 1))  # type: ignore[arg-type]

    assert seen("abc", drop) == broken
