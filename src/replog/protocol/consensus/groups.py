"""The groups of members that must agree, and the majority of each (Q8).

While the members change there are two groups, the old and the new one, and a majority of *each* must agree: to elections, to
commits and to reads. So two leaders of one term never both have a majority, whichever of the groups each of them knows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

Group = tuple[str, ...]


@attrs.frozen
class Membership:
    """One group of names, or two while they change: the old one first. `addresses` are those of all names."""

    groups: tuple[Group, ...] = ()
    addresses: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All members, each once."""
        return tuple(dict.fromkeys(name for group in self.groups for name in group))

    @property
    def newest(self) -> Group:
        """The group that will be the only one once a change has ended; () before there is any."""
        return self.groups[-1] if self.groups else ()

    @property
    def is_changing(self) -> bool:
        """True between CHANGE and SETTLE."""
        return len(self.groups) > 1

    def agree(self, names: Collection[str]) -> bool:
        """True if these names are a majority of every group."""
        return bool(self.groups) and all(is_majority(group, names) for group in self.groups)

    def changed_to(self, group: Group, addresses: Mapping[str, str]) -> Membership:
        """The membership that a CHANGE to this group sets: the old and the new one."""
        assert not self.is_changing, "one change at a time (Q9)"
        return Membership((self.newest, group), {**self.addresses, **addresses})

    def settled(self) -> Membership:
        """The membership that the SETTLE behind a CHANGE sets: the new group alone."""
        group = self.newest
        return Membership((group,), {name: self.addresses[name] for name in group if name in self.addresses})


def is_majority(group: Group, names: Collection[str]) -> bool:
    """True if more than half of the group are among these names."""
    return sum(name in names for name in group) > len(group) // 2
