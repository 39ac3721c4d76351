"""Which situations must have happened before "no violation" means anything."""

from __future__ import annotations

from collections.abc import Mapping

from replog.protocol.digest import DigestType
from tests.simulator import scenarios, steering

# Each was counted by a shell, the oracle or the world. A test fails if one of them never happened.
REQUIRED = (
    *(f"strategy {name}" for name in (*scenarios.STRATEGIES, *steering.STRATEGIES, "wild")),
    *(steered.shown_by for steered in steering.STRATEGIES.values()),
    *(f"digest {each.name}" for each in DigestType),
    "a gap says that a bookie lacks an entry",
    "a wrong password was refused",
    "as many bookies as an ensemble has",
    "CAS ambiguous and lost",
    "CAS ambiguous and won",
    "CAS applied after its client had given up",
    "added during an ensemble change",
    "answer after its deadline",
    "answer twice",
    "append held back over a roll",
    "bookie dropped a deleted ledger",
    "closed during an ensemble change",
    "confirmed copy sent to a replacement",
    "confirmed during an ensemble change",
    "confirmed copies were dropped as a gap",
    "concurrent recoveries both read",
    "connection refused",
    "crash after a sync, before its answers",
    "crash that lost unsynced writes",
    "degraded: no replacement",
    "follower crossed to the next ledger",
    "follower met a trimmed ledger",
    "follower read a page of the log",
    "fragment appended",
    "fragment replaced in place",
    "late acknowledgement of a replaced bookie",
    "leader deposed on a roll",
    "leader deposed on an append",
    "leader rolled",
    "ledger closed empty",
    "ledger closed with entries",
    "ledger closed with gaps",
    "ledger created without some of its bookies",
    "log begun anew",
    "log deleted",
    "message stopped by a partition",
    "negatives at exactly the quorum",
    "page of a log deleted",
    "page of a log existed",
    "page of a log written",
    "reader found newer metadata",
    "reader trimmed a batch",
    "reader was brought entries with the last add confirmed",
    "recovery adopted another's close",
    "recovery changed its private ensemble",
    "recovery closed with a private ensemble",
    "recovery ended inside a batch",
    "recovery failed: NotEnoughBookiesError",
    "recovery failed: RecoveryUndecidedError",
    "recovery from a confirmed entry found entries",
    "recovery from nothing found entries",
    "resent to a replacement",
    "takeover met a ledger that was trimmed",
    "takeover served",
    "the log's CAS met a conflict",
    "the log's CAS was ambiguous",
    "unconfirmed entries dropped by recovery",
    "unconfirmed entries kept by recovery",
    "writer fenced",
    "writer fenced with unconfirmed entries",
    "writer gave up at its deadline",
    *(
        f"fault: {effect}"
        for effect in ("damage", "delay", "doubt", "duplicate", "full", "lose", "nobody", "refuse", "same", "stall")
    ),
)


def missing(counts: Mapping[str, int]) -> list[str]:
    """The required situations that never happened."""
    return [situation for situation in REQUIRED if not counts.get(situation)]
