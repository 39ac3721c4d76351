"""The models of `spec/Log.tla` that TLC checks, and which rules are left out of them: as `models` does for one ledger."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tests.spec.models import Removal, members, written

INVARIANTS = (
    "ConfirmedIsInTheLog",
    "NamedExists",
    "OrderIsKept",
    "NoGap",
    "ReaderMissesNothing",
    "ClosedBeforeOpen",
    "NothingLeaks",
    "NamedOnce",
    "LeaderStays",
)

_DEFAULTS: Mapping[str, int | bool] = {
    "LedgersMax": 3,
    "EntriesMax": 2,
    "RollsMax": 1,
    "TrimsMax": 0,
    "SweepsMax": 0,
    "MayRead": True,
}


@attrs.frozen
class LogModel:
    """One choice of constants. `features` says in words what is in it."""

    name: str
    features: str
    constants: Mapping[str, int | bool] = attrs.field(factory=dict)
    clients: int = 2
    committers: int = 0
    is_long: bool = False
    samples: int = 0  # none of these is sampled
    module: str = "Log"

    def config(self, removed: str = "", *, goal: str = "") -> str:
        """The configuration for TLC, as `Model.config`."""
        values = {**_DEFAULTS, **self.constants}
        assert values.keys() == _DEFAULTS.keys(), "a model sets constants of the module only"
        lines = ["SPECIFICATION Spec", "CONSTANTS", f"  Clients = {members('c', self.clients)}"]
        lines.append(f"  Committers = {members('j', self.committers)}")
        lines += [f"  {name} = {written(value)}" for name, value in values.items()]
        lines.append("  Removed = {%s}" % (f'"{removed}"' if removed else ""))
        lines += [f"INVARIANTS {goal or ' '.join(INVARIANTS)}", "SYMMETRY Symmetry", "CHECK_DEADLOCK FALSE", ""]
        return "\n".join(lines)


LOG_MODELS = (
    LogModel("log", "two clients, three ledgers, two entries: takeovers, a roll, a reader"),
    LogModel(
        "log-request",
        "four ledgers, two entries: a committer asks the leader, who adds its ledger and goes on behind it, or is deposed",
        {"LedgersMax": 4, "MayRead": False},
        committers=1,
    ),
    LogModel(
        "log-request-reader",
        "one client, four ledgers, three entries: a reader crosses a committer's ledger",
        {"LedgersMax": 4, "EntriesMax": 3},
        clients=1,
        committers=1,
    ),
    LogModel(
        "log-requests",
        "one client, four ledgers, two committers with an entry each: one is answered, the other one deposes the leader",
        {"LedgersMax": 4, "MayRead": False},
        clients=1,
        committers=2,
    ),
    LogModel("log-rolls", "four ledgers: two rolls of a leader", {"LedgersMax": 4, "RollsMax": 2}),
    LogModel("log-trim", "a trim, and who deletes what it dropped", {"EntriesMax": 1, "TrimsMax": 1}),
    LogModel("log-sweep", "somebody deletes ledgers that are pending", {"EntriesMax": 1, "SweepsMax": 1}),
)

LOG_REMOVALS = (
    Removal(
        "L1 two",
        "log",
        "a takeover recovers only the last ledger of the list",
        redundant="the record names the first segment that may be open, and a roll's record names the previous one (L8). "
        "L1 alone was the rule before L8; two are recovered still, which costs one more look at a closed ledger.",
    ),
    Removal("L1 cas", "log", "a takeover adds its ledger although the list changed"),
    Removal("L1 serve", "log", "a takeover serves before its compare-and-set"),
    Removal("L2 wait", "log", "entries go to the new ledger before all in the previous one are confirmed"),
    Removal("L2 cas", "log", "a roll uses the new ledger before the list names it"),
    Removal("L2 previous", "log-rolls", "a leader rolls again before the previous ledger is closed"),
    Removal("L3", "log-trim", "ledgers are deleted before the list leaves them out"),
    Removal("L6", "log", "a reader goes on behind a ledger that is still open"),
    Removal("L7 pending", "log", "a ledger is created before it is written down"),
    Removal("L7 dropped", "log-trim", "the list does not say what a trim dropped"),
    Removal("L7 change", "log-sweep", "a sweep deletes a pending ledger without changing the list"),
    Removal("L8", "log-request", "a takeover recovers only the last two ledgers of the list"),
    Removal("L8 open", "log-request", "a roll's record says that the ledger before the new one is closed"),
    Removal("L10 withdraw", "log-request", "a committer deposes the leader while the record has its request"),
    Removal("L10 look", "log-request", "a leader adds what it was asked for although the record has changed"),
    Removal("L10 seek", "log-request", "a committer whose request is gone does not look whether it was answered"),
    Removal("L10 told", "log-request", "a committer is told before the ledger of the leader that answered is closed"),
    Removal(
        "L10 ends",
        "log-request",
        "takeovers and commits that depose leave requests in the record",
        redundant="the next leader may answer the request as well: it looks at the record and the ledgers itself, and the "
        "committer withdraws before it does anything else. The rule keeps requests of dead committers from staying.",
    ),
)

LOG_GOALS = (
    ("NeverTellsWhileALeaderStays", "log-request", "a leader that answered appends behind the committer's ledger"),
    ("NeverIsTakenOutInVain", "log-request", "a committer takes its request out, and deposes the leader"),
    ("NeverTwoTakeoversAndARead", "log", "a reader crosses two ledgers in which entries were confirmed"),
    (
        "NeverConfirmsWhenDeposed",
        "log",
        "a deposed leader hears a late acknowledgement, of an entry that was recovered",
    ),
)
