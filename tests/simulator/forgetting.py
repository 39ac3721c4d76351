"""Losses of disks: no bookie is to blame for these."""

from __future__ import annotations

from tests.simulator.world import World

Identity = tuple[int, int]  # stamp, entry id


class Forgotten:
    """The identities that were durable on a bookie, and were lost there."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._by_place: dict[tuple[str, int], set[Identity]] = {}  # by bookie and ledger

    def add(self, bookie_id: str, ledger_id: int, confirmed: int, identities: set[Identity]) -> None:
        """A bookie's disk lost these; `confirmed` is the last add confirmed of the ledger."""
        self._by_place.setdefault((bookie_id, ledger_id), set()).update(identities)
        if identities:
            self._world.count("bookie forgot entries")
        if any(entry_id <= confirmed for _, entry_id in identities):
            self._world.count("bookie forgot confirmed entries")

    def has(self, bookie_id: str, ledger_id: int, identity: Identity) -> bool:
        """Whether this was durable there, and was lost."""
        return identity in self._by_place.get((bookie_id, ledger_id), ())
