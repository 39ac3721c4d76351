"""Where ledgers have their nodes below the root of BookKeeper's metadata, and the URIs that name that root."""

from __future__ import annotations

import enum
import re

import attrs

from replog.errors import ConfigError, MetastoreCorruptError
from replog.metastores.zookeeper.options import Place, parse_place

LEDGER_ID_MAX = (1 << 63) - 1
SHORT_IDS = (1 << 31) - 1  # ids from here on have long paths
_FACTORIES = "org.apache.bookkeeper.meta."
_SHORT: tuple[int, ...] = (2, 4, 4)
_LONG: tuple[int, ...] = (3, 4, 4, 4, 4)


class Layout(enum.Enum):
    """How ledgers are spread over nodes; the values are the schemes of URIs."""

    FLAT = "flat"
    HIERARCHICAL = "hierarchical"
    LONG_HIERARCHICAL = "longhierarchical"
    LEGACY_HIERARCHICAL = "legacyhierarchical"


_BY_FACTORY = {
    "FlatLedgerManagerFactory": Layout.FLAT,
    "HierarchicalLedgerManagerFactory": Layout.HIERARCHICAL,
    "LongHierarchicalLedgerManagerFactory": Layout.LONG_HIERARCHICAL,
    "LegacyHierarchicalLedgerManagerFactory": Layout.LEGACY_HIERARCHICAL,
}


@attrs.frozen
class Target:
    """The servers and root of a cluster's metadata, and its layout, if the URI names one."""

    place: Place
    layout: Layout | None

    @classmethod
    def parse(cls, uri: str) -> Target:
        """Reads "zk+hierarchical://zk1:2181;zk2/ledgers". Raises `ConfigError`."""
        scheme, separator, rest = uri.partition("://")
        store, _, layout = scheme.partition("+")
        if not separator or store != "zk":
            raise ConfigError(
                f"{uri!r}: expected zk://HOST:PORT;HOST/ledgers, zk+hierarchical://... or zk+longhierarchical://...: "
                "BookKeeper's metadata is reached in ZooKeeper only"
            )
        layouts = {each.value: each for each in Layout}
        if layout not in ("", "null", *layouts):
            raise ConfigError(f"{uri!r}: {layout} is not a layout: one of {', '.join(layouts)}")
        place = parse_place(rest.replace(";", ","))
        if not place.chroot:
            raise ConfigError(f"{uri!r}: it names no root: /ledgers, unless the cluster was begun with another one")
        return cls(place, layouts.get(layout))


def decode_layout(data: bytes) -> Layout:
    """The layout that the node LAYOUT names. Raises `MetastoreCorruptError`."""
    lines = data.decode(errors="replace").splitlines()
    factory = lines[1].rpartition(":")[0].removeprefix(_FACTORIES) if len(lines) == 2 else ""
    if factory not in _BY_FACTORY:
        raise MetastoreCorruptError(f"LAYOUT: {data[:200]!r} names no layout that this client knows")
    return _BY_FACTORY[factory]


def ledger_key(layout: Layout, ledger_id: int) -> str:
    """The node of a ledger, below the root. Raises `ConfigError` for an id that the layout has no place for."""
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise ConfigError(f"{ledger_id} is not the id of a ledger")
    is_short = layout is Layout.HIERARCHICAL and ledger_id < SHORT_IDS
    if layout is Layout.FLAT:
        return f"L{ledger_id:010d}"
    if layout is Layout.LEGACY_HIERARCHICAL and ledger_id >= 10**10:
        raise ConfigError(f"ledger {ledger_id}: the layout {layout.value} has no place for it")
    widths = _SHORT if is_short or layout is Layout.LEGACY_HIERARCHICAL else _LONG
    digits = f"{ledger_id:0{sum(widths)}d}"
    words, start = [], 0
    for width in widths:
        words.append(digits[start : start + width])
        start += width
    return "/".join((*words[:-1], f"L{words[-1]}"))


def shapes(layout: Layout) -> list[tuple[int, ...]]:
    """The widths of the words of ledgers' nodes, for each tree that this layout has."""
    if layout is Layout.HIERARCHICAL:
        return [_SHORT, _LONG]
    return {Layout.LONG_HIERARCHICAL: [_LONG], Layout.LEGACY_HIERARCHICAL: [_SHORT]}.get(layout, [])


def is_word(name: str, width: int, *, is_last: bool) -> bool:
    """True if a node of this name is one on the way to ledgers, or with `is_last` a ledger."""
    digits = name[1:] if is_last and name.startswith("L") else ("" if is_last else name)
    return re.fullmatch(rf"\d{{{width}}}", digits, re.ASCII) is not None


def flat_id(name: str) -> int | None:
    """The id of the ledger whose node in a flat layout has this name; None for another node."""
    found = re.fullmatch(r"L(\d{10,})", name, re.ASCII)
    return int(found[1]) if found else None
