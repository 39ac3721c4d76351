"""The models of `spec/Record.tla` (index chunks, M4) and `spec/Full.tla` (the guaranteed write quorum, W8), and which rules
are left out of them: as `models` does for one ledger."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tests.spec.models import Removal, written

_INVARIANTS = {
    "Record": ("NamedExists", "NoFragmentIsLost", "NoFragmentIsTwice", "NobodyIsAlarmed"),
    "Full": ("ToldIsFull", "MarkedIsFull"),
}
_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "Record": {"FragmentsMax": 5, "FillsMax": 1, "ChangesMax": 2, "CollectsMax": 1},
    "Full": {"Qw": 2, "Qa": 1, "FragmentsMax": 3, "RepairsMax": 1},
}


@attrs.frozen
class RecordModel:
    """One choice of constants. `features` says in words what is in it."""

    name: str
    module: str
    features: str
    constants: Mapping[str, int] = attrs.field(factory=dict)
    is_long: bool = False
    samples: int = 0  # none of these is sampled

    def config(self, removed: str = "", *, goal: str = "") -> str:
        """The configuration for TLC, as `Model.config`."""
        defaults = _DEFAULTS[self.module]
        values = {**defaults, **self.constants}
        assert values.keys() == defaults.keys(), "a model sets constants of the module only"
        lines = ["SPECIFICATION Spec", "CONSTANTS", "  Clients = {c1, c2}"]
        lines += [f"  {name} = {written(value)}" for name, value in values.items()]
        lines.append("  Removed = {%s}" % (f'"{removed}"' if removed else ""))
        lines.append(f"INVARIANTS {goal or ' '.join(_INVARIANTS[self.module])}")
        lines += ["SYMMETRY Symmetry", "CHECK_DEADLOCK FALSE", ""]
        return "\n".join(lines)


RECORD_MODELS = (
    RecordModel("record", "Record", "index chunks: two rolls, trims or repairs by two clients, and a collection"),
    RecordModel("record-three", "Record", "the same with three changes", {"ChangesMax": 3}),
    RecordModel(
        "full", "Full", "(2, 2, 1), three fragments: two clients roll and wait for copies, a bookie is replaced"
    ),
    RecordModel("full-four", "Full", "the same with four fragments", {"FragmentsMax": 4}),
    RecordModel("full-three", "Full", "(3, 3, 2), three fragments", {"Qw": 3, "Qa": 2}),
)

RECORD_REMOVALS = (
    Removal("M4 before", "record", "a compare-and-set names chunks that are not written yet"),
    Removal("M4 after", "record", "chunks are deleted before the compare-and-set that no longer names them"),
    Removal("M4 version", "record", "a chunk's name does not say upon which version of the record it was made"),
    Removal("M4 digest", "record", "two clients upon one version write different contents under one name"),
    Removal("M4 collect", "record", "a chunk that is about to be named is collected as garbage"),
    Removal("M4 reread", "record", "a missing chunk is reported, without a look at the record as it is now"),
    Removal("W8 asked", "full", "an ack quorum is taken for all copies"),
    Removal("W8 all", "full", "only the last fragment is asked for, and not all since the mark"),
    Removal("W8 mark", "full", "a roll raises the mark before the copies are there"),
    Removal("W8 own", "full-four", "the mark is raised beyond what its client asked for"),
    Removal("W8 copied", "full", "a repair replaces a bookie before the new one has the copies (F1)"),
)

RECORD_GOALS = (
    ("NeverTrimsAChunkInTwo", "record", "a trim cuts a chunk, and a new one has its rest"),
    ("NeverLeavesGarbage", "record", "a client that lost its compare-and-set leaves a chunk that nobody names"),
    ("NeverTellsBeforeTheLastIsFull", "full", "a user is told of full fragments while a later one is short"),
)
