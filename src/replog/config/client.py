"""The options of clients."""

from __future__ import annotations

import attrs

from replog.config.checks import Checked, at_least, one_of, option, positive
from replog.protocol.batch import BATCH_BYTES_MAX
from replog.protocol.compression import COMPRESSIONS
from replog.protocol.model import Durability

_MIB = 1 << 20
UNBOUNDED = "unbounded"
LEDGER_KINDS = ("bounded", UNBOUNDED)  # of logs (L9)


@attrs.frozen(kw_only=True)
class ClientOptions(Checked):
    """How a client writes, reads and takes over. Environment: `REPLOG_CLIENT_...`; in a file: the table `client`."""

    in_flight_bytes_max: int = option(
        64 * _MIB,
        "Bytes that a writer may have pushed and not confirmed; `append` waits, `push_nowait` raises (W6).",
        positive,
    )
    batch_bytes_max: int = option(
        _MIB,
        "Bytes that a batch gathers at most; a single larger entry makes a larger batch.",
        at_least(1, BATCH_BYTES_MAX // 2),
    )
    batches_in_flight_max: int = option(
        4, "Batches sent and not confirmed; more entries gather into the next.", at_least(1)
    )
    compression: str = option(
        "none",
        "Of what this client writes. `zstd`: batches are compressed where that saves an eighth; needs `replog[zstd]`.",
        one_of(*COMPRESSIONS),
    )
    add_timeout_s: float = option(5.0, "How long one bookie may take for an add before it is replaced (W6).", positive)
    durability: str = option(
        Durability.ACK_QUORUM.value,
        "Of new ledgers and logs. `write-quorum`: closes, rolls and takeovers end only when bookies have all copies (W8).",
        one_of(*(each.value for each in Durability)),
    )
    write_quorum_timeout_s: float = option(
        20.0,
        "How long a close, roll or takeover waits for all copies, if they are guaranteed, before it raises `WriteQuorumError`.",
        positive,
    )
    add_quorum_timeout_s: float = option(
        30.0, "How long an entry may stay unconfirmed before its writer fails with `AddTimeoutError` (W6).", positive
    )
    lagging_bookie_timeout_s: float = option(
        1.0,
        "After how long a bookie is replaced that has fallen far behind the others and answers nothing. Appends go on.",
        positive,
    )
    read_timeout_s: float = option(
        5.0, "How long one bookie may take for a read before the next is asked (D2).", positive
    )
    speculative_read_after_s: float = option(0.5, "After how long a second bookie is asked as well (D2).", positive)
    explicit_last_add_confirmed_after_s: float = option(
        0.1,
        "After how long an idle writer publishes its last add confirmed, if no follower waits for it (W5).",
        positive,
    )
    follow_wait_s: float = option(
        1.0,
        "How long a bookie may keep a following reader's query open (D1); up to 16 times as long while nothing comes.",
        positive,
    )
    roll_bytes: int | None = option(
        256 * _MIB,
        "A log begins its next ledger after this many bytes, and an unbounded ledger its next fragment; none: never (L2).",
        positive,
    )
    roll_entries: int | None = option(None, "The same after this many entries.", positive)
    roll_age_s: float | None = option(None, "The same after this time.", positive)
    log_ledgers: str = option(
        "bounded",
        "Ledgers of new logs: `bounded`, one for each leader, or `unbounded`, which the next leader goes on with (L9).",
        one_of(*LEDGER_KINDS),
    )
    retention_interval_s: float = option(
        60.0, "How often the writer of a log drops what its retention does not keep (L3).", positive
    )
    takeover_timeout_s: float = option(30.0, "How long a takeover may take, lost races included (L1).", positive)
    recovery_timeout_s: float = option(
        30.0, "How long the recovery of one ledger may take; until then it goes on asking (R4, R12).", positive
    )
    absence_wait_s: float = option(
        2.0,
        "How long a recovery waits for a silent bookie, from the recovery's start or the bookie's last answer, before the other "
        "bookies' denials decide (R10).",
        positive,
    )
    metastore_timeout_s: float = option(
        10.0, "How long one change of metadata may take, its retries included (M1).", positive
    )
    connect_timeout_s: float = option(5.0, "How long connecting to a bookie may take.", positive)
    bookie_retry_after_s: float = option(
        5.0, "How long a bookie that failed is left out of new ensembles; longer if it keeps failing.", positive
    )
    bookie_retry_after_max_s: float = option(60.0, "The longest time that a failing bookie is left out.", positive)
    repair_bytes_per_s: int = option(
        64 * _MIB,
        "Bytes of copies that a repair sends in a second at most, so that it leaves room for appends.",
        positive,
    )
    repair_in_flight_bytes_max: int = option(
        4 * _MIB,
        "Bytes of copies on their way to one bookie, which appends wait for: fewer keep appends quick, more copy faster.",
        positive,
    )
    repair_fragments_at_once: int = option(
        1,
        "Fragments that a repair copies at the same time, each with up to 3 MiB in memory, or two larger batches. More make "
        "appends wait, and are faster only where bookies are far away.",
        at_least(1),
    )
    audit_ledgers_at_once: int = option(
        2,
        "Ledgers that an audit asks bookies about at the same time. More make appends wait, and are faster only where bookies "
        "are far away.",
        at_least(1),
    )
    transports: tuple[str, ...] = option(
        (), "URLs of transports with their options, as `tcp:?tls_ca_file=ca.pem`; others have their defaults."
    )
    authentication: str = option("none", "URL of the authenticator that proves to bookies who this client is.")
    zone: str | None = option(
        None, "Where this client is: it reads from bookies with the label `zone` of this value first; none: from any."
    )

    def contradictions(self) -> list[str]:
        """Faults of options that are valid one by one, but not together."""
        faults = []
        if self.batch_bytes_max > self.in_flight_bytes_max:
            faults.append(
                f"batch_bytes_max {self.batch_bytes_max} exceeds in_flight_bytes_max {self.in_flight_bytes_max}"
            )
        if self.add_timeout_s > self.add_quorum_timeout_s:
            faults.append(
                f"add_timeout_s {self.add_timeout_s} exceeds add_quorum_timeout_s {self.add_quorum_timeout_s}"
            )
        if self.bookie_retry_after_s > self.bookie_retry_after_max_s:
            faults.append(
                f"bookie_retry_after_s {self.bookie_retry_after_s} exceeds "
                f"bookie_retry_after_max_s {self.bookie_retry_after_max_s}"
            )
        return faults
