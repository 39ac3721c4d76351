"""The models of `spec/Ledger.tla` that TLC checks: which constants, which features, and which rules are left out of them."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

INVARIANTS = (
    "NothingConfirmedIsCutOff",
    "ConfirmedIsReadable",
    "ClosedIsAtAckQuorum",
    "ConfirmedIsAtAckQuorum",
    "FragmentsAreValid",
    "OnePayload",
    "CloserAgrees",
    "ProvenIsReadable",
    "ReadersAgree",
    "TypeOK",
)
PROPERTIES = ("RecordsGoForward",)

DEFAULTS: Mapping[str, int | bool | str] = {
    "E": 3,
    "Qw": 3,
    "Qa": 2,
    "EntriesMax": 1,
    "ChangesMax": 0,
    "ReplacedMax": 1,
    "PrivateMax": 0,
    "LossesMax": 0,
    "LossKind": "doubt",
    "DeclaredMax": 0,
    "MaySilent": True,
    "LiesMax": 0,
    "RepairsMax": 0,
    "MayPublish": False,
    "SlowMetastore": False,
    "LateAnswers": False,
    "Unbounded": False,
    "RollsMax": 0,
    "TrimsMax": 0,
    "MayDrop": False,
    "MayEnd": False,
    "MayClose": False,
}


@attrs.frozen
class Model:
    """One choice of constants. `features` says in words what is in it; a model that `is_long` takes more than a few minutes, or
    is only sampled."""

    name: str
    features: str
    bookies: int = 3
    recoveries: int = 1
    constants: Mapping[str, int | bool | str] = attrs.field(factory=dict)
    is_long: bool = False
    samples: int = 0  # random behaviours that are tried; 0: every state is looked at
    module: str = "Ledger"

    def config(self, removed: str = "", *, goal: str = "") -> str:
        """The configuration for TLC, without the rule `removed`. With a goal, only that is checked: TLC finds a state in which
        it does not hold."""
        values = {**DEFAULTS, **self.constants}
        assert values.keys() == DEFAULTS.keys(), "a model sets constants of the module only"
        lines = ["SPECIFICATION Spec", "CONSTANTS", "  Creator = creator"]
        lines.append(f"  Bookies = {members('b', self.bookies)}")
        lines.append(f"  Recoveries = {members('r', self.recoveries)}")
        lines += [f"  {name} = {written(value)}" for name, value in values.items()]
        lines.append("  Removed = {%s}" % (f'"{removed}"' if removed else ""))
        lines.append(f"INVARIANTS {goal or ' '.join(INVARIANTS)}")
        if not goal:
            lines.append(f"PROPERTIES {' '.join(PROPERTIES)}")
        lines += [] if self.samples else ["SYMMETRY Symmetry"]
        lines += ["CONSTRAINT IsGoingOn", "CHECK_DEADLOCK FALSE", ""]
        return "\n".join(lines)


@attrs.frozen
class Removal:
    """A rule that is left out. TLC must find a violation in this model; if `redundant` says why not, it must find none."""

    rule: str
    model: str
    meaning: str
    redundant: str = ""


def members(letter: str, count: int) -> str:
    """A set of so many model values, as a configuration of TLC has it."""
    names = ", ".join(f"{letter}{number}" for number in range(1, count + 1))
    return f"{{{names}}}"


def written(value: int | bool | str) -> str:
    """A constant as a configuration of TLC has it."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return f'"{value}"' if isinstance(value, str) else str(value)


_PAIR = {"E": 2, "Qw": 2, "Qa": 2}

MODELS = (
    Model("one", "one entry, one recovery, (3, 3, 2)"),
    Model("two", "two entries, one recovery", constants={"EntriesMax": 2}),
    Model("duel", "two recoveries at the same time", recoveries=2),
    Model("striped", "E > Qw: (3, 2, 2), two entries", constants={"Qw": 2, "EntriesMax": 2}),
    Model("change", "the writer changes its ensemble", bookies=4, constants={"ChangesMax": 1}),
    Model(
        "slow",
        "an ensemble change whose compare-and-set arrives late, or after a recovery began",
        bookies=4,
        constants={"ChangesMax": 1, "SlowMetastore": True},
    ),
    Model(
        "close",
        "the writer closes, publishes its last add confirmed and learns of its deposition; the metastore is slow",
        constants={"MayClose": True, "MayPublish": True, "MayEnd": True, "SlowMetastore": True},
    ),
    Model(
        "private",
        "(2, 2, 2), two entries: the writer's and recovery's ensemble changes",
        constants={**_PAIR, "EntriesMax": 2, "ChangesMax": 1, "PrivateMax": 1},
    ),
    Model("private-one", "(2, 2, 2): recovery's private ensemble", constants={**_PAIR, "PrivateMax": 1}),
    Model("private-two", "(2, 2, 2), two entries: the same", constants={**_PAIR, "PrivateMax": 1, "EntriesMax": 2}),
    Model(
        "private-duel",
        "(2, 2, 2): two recoveries, each with a private ensemble",
        recoveries=2,
        constants={**_PAIR, "PrivateMax": 1},
    ),
    Model(
        "private-duel-two",
        "(2, 2, 2), two entries: two recoveries, each with a private ensemble",
        recoveries=2,
        constants={**_PAIR, "PrivateMax": 1, "EntriesMax": 2},
        is_long=True,
    ),
    Model("fragments", "(2, 2, 2): a recovery behind an ensemble change", constants={**_PAIR, "ChangesMax": 1}),
    Model("loss", "a bookie forgets a suffix and its fence, and knows it (B8)", constants={"LossesMax": 1}),
    Model(
        "unnoticed",
        "a bookie forgets a suffix and its fence, and does not notice; recovery reaches everybody (R10)",
        constants={"LossesMax": 1, "LossKind": "unnoticed", "MaySilent": False},
    ),
    Model("declared", "an operator declares a bookie lost (B8a)", constants={"DeclaredMax": 1}),
    Model("lies", "a bookie reports a wrong number as the last add confirmed (R11)", constants={"LiesMax": 1}),
    Model("repair", "a filler replaces a member of a fragment (F1, F2, F4)", bookies=4, constants={"RepairsMax": 1}),
    Model(
        "sampled-bounded",
        "(3, 3, 2) of five bookies, three entries, changes, private ensembles, two recoveries and a repair together",
        bookies=5,
        recoveries=2,
        constants={
            "EntriesMax": 3,
            "ChangesMax": 2,
            "PrivateMax": 1,
            "RepairsMax": 1,
            "MayClose": True,
            "MayPublish": True,
        },
        is_long=True,
        samples=20_000,
    ),
    Model(
        "sampled-takeover",
        "unbounded, (3, 3, 2) of four bookies, four entries, changes, private ensembles, three takeovers",
        bookies=4,
        recoveries=3,
        constants={"EntriesMax": 4, "ChangesMax": 1, "PrivateMax": 1, "Unbounded": True, "MayPublish": True},
        is_long=True,
        samples=20_000,
    ),
    Model(
        "takeover",
        "unbounded, (2, 2, 2), two entries: two takeovers that go on as writers, readers with any record and proof they ever had",
        recoveries=2,
        constants={**_PAIR, "EntriesMax": 2, "Unbounded": True},
    ),
    Model(
        "roll",
        "unbounded, (2, 2, 2), two entries: a roll, a trim and a takeover at the same time, and bookies that drop",
        constants={**_PAIR, "EntriesMax": 2, "Unbounded": True, "RollsMax": 1, "TrimsMax": 1, "MayDrop": True},
    ),
    Model(
        "drop",
        "(2, 2, 2): a writer that changes its ensemble twice, and back, while bookies drop what is not theirs (F5)",
        constants={**_PAIR, "ChangesMax": 2, "MayDrop": True},
    ),
    Model("late", "answers to recovery are heard late, and fences arrive late", constants={"LateAnswers": True}),
)

REMOVALS = (
    Removal("T1", "one", "a bookie accepts a lower term than its fence"),
    Removal("W2", "two", "an entry is confirmed although one before it is not"),
    Removal(
        "C1",
        "fragments",
        "entries are confirmed during a change of the ensemble where a write set keeps too few indices",
        redundant="only indices count that stay (C9), so an entry that has its ack quorum of these is in both fragments. What "
        "the rule saves is a later recovery without the bookies that failed (C7): it is about progress.",
    ),
    Removal("C9", "change", "an index counts while it is being replaced"),
    Removal("C9 time-out", "slow", "a change whose answer does not come is taken for undone, and arrives later"),
    Removal("C2", "change", "the new fragment starts one entry late"),
    Removal("C3", "slow", "the new ensemble is used before the record names it"),
    Removal(
        "C4",
        "slow",
        "a writer that meets a recovery proposes its ensemble once more",
        redundant="the recovery's own compare-and-set fails then (its last fragment is another), it ends undecided, and its "
        "successor fences the new ensemble. What the rule saves is the recovery's time: it is about progress.",
    ),
    Removal("C5", "change", "acknowledgements of a replaced bookie stay counted"),
    Removal("C6", "change", "late acknowledgements count for the index, whoever sent them"),
    Removal("R1 freeze", "close", "entries are confirmed between the closing compare-and-set and its answer"),
    Removal("R1 same", "close", "a writer that closes takes another's end for its own"),
    Removal(
        "R2",
        "striped",
        "recovery reads without waiting for fences",
        redundant="recovery reads fence as well (R4), and a denial counts only from the write set of its entry. Later ids of "
        "other write sets may still be accepted, but are never confirmed, since one before them is not (W2).",
    ),
    Removal("R3", "one", "a restart forgets the fence"),
    Removal("R4 fence", "one", "recovery reads look, and do not fence"),
    Removal("R4 negatives", "one", "one denial too few proves absence"),
    Removal("R4 start", "fragments", "recovery starts where bookies say, before the last fragment"),
    Removal("R4 unknown", "one", "damage or an I/O error is taken for a denial"),
    Removal("R4 back", "one", "what recovery writes back needs one copy only"),
    Removal("R4 carry", "two", "denials of one entry count for the next one"),
    Removal("R5", "private-duel-two", "what recovery writes back carries an advancing last add confirmed"),
    Removal("R6 private", "private-duel", "recovery's ensemble is in the record before it closes the ledger"),
    Removal("R6 resend", "private-one", "recovery keeps the acknowledgements of bookies that it replaced"),
    Removal("R6 cas", "duel", "a recovery closes the ledger although the record changed"),
    Removal("R9", "private-two", "recovery reads from its own changed ensemble"),
    Removal("R10 heard", "unnoticed", "an entry is absent before everybody who can be reached was heard"),
    Removal("R10 weak", "loss", "denials of a bookie in doubt count like others"),
    Removal("R11", "lies", "one bookie's number needs no proof"),
    Removal("B1", "one", "a bookie acknowledges before it is durable"),
    Removal("B8 doubt", "loss", "a bookie does not know that it lost something"),
    Removal("B8 adds", "loss", "a bookie in doubt takes plain adds"),
    Removal("B8a", "declared", "a bookie that was declared lost counts as a denial"),
    Removal("M1", "slow", "a compare-and-set without an answer is taken for written"),
    Removal("M1 nonce", "takeover", "two takeovers take the same term for their own"),
    Removal("T3", "takeover", "entries are recovered whatever their stamp"),
    Removal("D1 stamp", "takeover", "a reader believes a last add confirmed without its stamp"),
    Removal("F5", "drop", "bookies drop what the last fragment of an open ledger does not name them for"),
    Removal("F1", "repair", "the record names a replacement that has no copies"),
    Removal("F2", "repair", "the last fragment of an open ledger is filled"),
)

# What must come about in some state, else a model would hold because nothing happens in it.
GOALS = (
    ("NeverRecoversFromConfirmed", "two", "a recovery that starts at a confirmed entry finds another one and closes"),
    ("NeverReplacesInPlace", "change", "a fragment without entries is replaced"),
    ("NeverConfirmsInChange", "change", "an entry is confirmed while the ensemble changes"),
    ("NeverMovesOn", "private-two", "a recovery's own fragment begins behind an entry that was there before"),
    ("NeverTrimsAndTakesOver", "roll", "a takeover goes on behind a fragment that was trimmed and dropped meanwhile"),
    ("NeverDeposes", "one", "a writer confirms an entry after its recovery began to fence"),
)
