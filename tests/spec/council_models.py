"""The models of `spec/Council.tla` that TLC checks, the members of a metastore, and which rules are left out of them: as
`models` does for one ledger."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tests.spec.models import Removal, written

_INVARIANTS = "OneLeader OneHistory LeaderHasAll CommittedIsThere LogsMatch SomebodyMayLead"
_DEFAULTS: Mapping[str, int] = {"TermsMax": 2, "LogMax": 2, "StandsMax": 0, "CommandsMax": 0, "LossesMax": 0}


@attrs.frozen
class CouncilModel:
    """One choice of constants. `features` says in words what is in it. Names are letters; those that are in no group yet are new
    directories. Names that are in the same groups are interchangeable."""

    name: str
    features: str
    constants: Mapping[str, int] = attrs.field(factory=dict)
    first: str = "abc"
    targets: tuple[str, ...] = ()
    is_long: bool = False
    samples: int = 0  # none of these is sampled
    module: str = "Council"

    def config(self, removed: str = "", *, goal: str = "") -> str:
        """The configuration for TLC, as `Model.config`."""
        values = {**_DEFAULTS, **self.constants}
        assert values.keys() == _DEFAULTS.keys(), "a model sets constants of the module only"
        names = sorted({*self.first, *"".join(self.targets)})
        lines = ["SPECIFICATION Spec", "CONSTANTS", *(f"  {name} = {name}" for name in names)]
        lines += [f"  Names = {_group(names)}", f"  First = {_group(self.first)}"]
        lines.append(f"  Targets = {_group([_group(each) for each in self.targets])}")
        lines.append(f"  Alike = {_group(self._alike(names))}")
        lines += [f"  {name} = {written(value)}" for name, value in values.items()]
        lines.append("  Removed = {%s}" % (f'"{removed}"' if removed else ""))
        lines += [f"INVARIANTS {goal or _INVARIANTS}", "SYMMETRY Symmetry", "CHECK_DEADLOCK FALSE", ""]
        return "\n".join(lines)

    def _alike(self, names: list[str]) -> list[str]:
        places = {name: [name in group for group in (self.first, *self.targets)] for name in names}
        return max(([each for each in names if places[each] == places[name]] for name in names), key=len)


def _group(names: str | list[str]) -> str:
    return f"{{{', '.join(names)}}}"


_PROGRESS = (
    "two groups have a majority of the old one in common, so one term has one leader, and what is committed is seen. "
)

COUNCIL_MODELS = (
    CouncilModel("council", "three members, two terms, two entries"),
    CouncilModel("council-terms", "three members, three terms, one entry", {"TermsMax": 3, "LogMax": 1}),
    CouncilModel(
        "council-command",
        "three members, two terms and candidacies, three entries, one of them a command",
        {"LogMax": 3, "StandsMax": 2, "CommandsMax": 1},
    ),
    CouncilModel("council-loss", "three members, two terms: a disk loses all, or an entry", {"LossesMax": 1}),
    CouncilModel("council-change", "a member gives way to another one: {a} to {b}", {"LogMax": 4}, "a", ("b",)),
    CouncilModel("council-grow", "a second member: {a} to {a, b}", {"LogMax": 4}, "a", ("ab",)),
    CouncilModel(
        "council-overlap",
        "two members, one of them replaced: {a, b} to {b, c}, three entries",
        {"LogMax": 3, "StandsMax": 2},
        "ab",
        ("bc",),
    ),
    CouncilModel(
        "council-three-entries",
        "three members, three terms and candidacies, two entries",
        {"TermsMax": 3, "StandsMax": 3},
        is_long=True,
    ),
    CouncilModel(
        "council-long-log",
        "three members, three terms and candidacies, two entries, one of them a command",
        {"TermsMax": 3, "StandsMax": 3, "CommandsMax": 1},
        is_long=True,
    ),
    CouncilModel(
        "council-four-terms",
        "three members, four terms and candidacies, one entry",
        {"TermsMax": 4, "LogMax": 1, "StandsMax": 4},
        is_long=True,
    ),
    CouncilModel(
        "council-changes", "{a} to {b} and to {c}", {"LogMax": 3, "StandsMax": 2}, "a", ("b", "c"), is_long=True
    ),
    CouncilModel(
        "council-replace",
        "three members and a new name: {a, b, c} to {a, b, d}, and a disk is lost",
        {"LogMax": 3, "StandsMax": 2, "LossesMax": 1},
        targets=("abd",),
        is_long=True,
    ),
)

COUNCIL_REMOVALS = (
    Removal("Q1 durable", "council", "a vote, or a candidacy, counts before it is on the disk"),
    Removal("Q1 once", "council", "a member votes for two candidates in a term"),
    Removal("Q2 answer", "council", "a follower acknowledges what is not on its disk"),
    Removal("Q2 own", "council", "a leader counts entries that are not on its own disk"),
    Removal("Q3 log", "council", "a candidate that lacks entries gets votes"),
    Removal("Q3 term", "council-long-log", "logs are compared by their length only"),
    Removal("Q4 compare", "council-command", "entries are appended without comparing the one before them"),
    Removal("Q4 acknowledge", "council-terms", "a follower acknowledges all that it has, not all that was compared"),
    Removal("Q5", "council", "a message that ends early cuts what is behind it"),
    Removal("Q6", "council-four-terms", "entries of earlier terms are committed by counting"),
    Removal("Q7 compared", "council", "a follower commits entries that this message has not compared"),
    Removal("Q7 term", "council-terms", "acknowledgements of an earlier term count"),
    Removal("Q8 majority", "council", "one member too few is enough"),
    Removal("Q8 both", "council-change", "the old members agree alone"),
    Removal("Q8 joint", "council-change", "the new members count alone from the entry on"),
    Removal("Q8 log", "council-grow", "an entry about members counts once it is known to be committed"),
    Removal("Q9 settle", "council-change", "SETTLE follows before CHANGE is committed"),
    Removal("Q9 one", "council-changes", "a second change begins before the first one has ended"),
    Removal("Q9 let go", "council-change", "a member that an entry lets go does not stand for election any more"),
    Removal(
        "Q9 own term",
        "council-change",
        "a change begins before its leader has committed an entry of its term",
        redundant=_PROGRESS + "With one group at a time it would be needed. The rule is checked in a small model only.",
    ),
    Removal(
        "Q9 newcomer",
        "council-change",
        "a change begins before the newcomer has what is committed",
        redundant=_PROGRESS + "The rule saves a change that waits for a newcomer that nobody reaches.",
    ),
    Removal("Q11 wiped", "council-loss", "a disk that was wiped comes back under its name"),
    Removal("Q11 shortened", "council-loss", "a disk that lost an entry comes back under its name"),
)

# What must come about in some state, else a model would hold because nothing happens in it.
COUNCIL_GOALS = (
    ("NeverLeadsWithOldEntries", "council", "a leader commits an entry of an earlier term with one of its own"),
    ("NeverCommitsBeforeItsDisk", "council", "a leader commits what its own disk does not have yet"),
    ("NeverCutsALostLeader", "council-terms", "an entry of a lost leader is cut, and another one committed there"),
    ("NeverLeadsTheNewGroup", "council-change", "a newcomer leads alone, behind a committed SETTLE"),
)
