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
    compression: str = option(
        "none",
        "Of what this client writes. `zstd`: batches are compressed where that saves an eighth; needs `replog[zstd]`.",
        one_of(*COMPRESSIONS),
    )
    add_timeout_s: float = option(
        5.0,
        "How long one bookie may take for an add before it is replaced (W6), and for a read before the next is asked (D2).",
        positive,
    )
    durability: str = option(
        Durability.ACK_QUORUM.value,
        "Of new ledgers and logs. `write-quorum`: closes, rolls and takeovers end only when bookies have all copies (W8).",
        one_of(*(each.value for each in Durability)),
    )
    add_quorum_timeout_s: float = option(
        30.0, "How long an entry may stay unconfirmed before its writer fails with `AddTimeoutError` (W6).", positive
    )
    roll_bytes: int | None = option(
        256 * _MIB,
        "A log begins its next ledger after this many bytes, and an unbounded ledger its next fragment; none: never (L2).",
        positive,
    )
    roll_age_s: float | None = option(None, "The same after this time.", positive)
    log_ledgers: str = option(
        "bounded",
        "Ledgers of new logs: `bounded`, one for each leader, or `unbounded`, which the next leader goes on with (L9).",
        one_of(*LEDGER_KINDS),
    )
    takeover_timeout_s: float = option(
        30.0,
        "How long a takeover may take, lost races included (L1); a recovery of one ledger goes on asking as long (R4, R12).",
        positive,
    )
    metastore_timeout_s: float = option(
        10.0, "How long one change of metadata may take, its retries included (M1).", positive
    )
    repair_bytes_per_s: int = option(
        64 * _MIB,
        "Bytes of copies that a repair sends in a second at most, so that it leaves room for appends.",
        positive,
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
        if self.add_timeout_s > self.add_quorum_timeout_s:
            faults.append(
                f"add_timeout_s {self.add_timeout_s} exceeds add_quorum_timeout_s {self.add_quorum_timeout_s}"
            )
        return faults


@attrs.frozen(kw_only=True)
class ClientTuning(ClientOptions):
    """A client's options, and beside them the constants of clients. No configuration sets these; tests do, to be quick."""

    # Larger batches gain nothing: at 1 MiB, checksum and system calls are a hundredth of what the bytes cost.
    batch_bytes_max: int = option(
        _MIB,
        "Bytes that a batch gathers at most; a single larger entry makes a larger batch.",
        at_least(1, BATCH_BYTES_MAX // 2),
    )
    # Two to four hide the disks' latency; more only make an entry wait behind more others. It adapts below that by itself.
    batches_in_flight_max: int = option(
        4, "Batches sent and not confirmed; more entries gather into the next.", at_least(1)
    )
    # As `add_timeout_s`: a bookie that is too slow for one is too slow for the other.
    read_timeout_s: float = option(
        5.0, "How long one bookie may take for a read before the next is asked (D2).", positive
    )
    # Reads take milliseconds: after so long a bookie is in trouble, and the second one answers before a person notices.
    speculative_read_after_s: float = option(0.5, "After how long a second bookie is asked as well (D2).", positive)
    # Bytes say how long a recovery and a copy take, and entries do not. For tests of rolling.
    roll_entries: int | None = option(None, "A log begins its next ledger after this many entries.", positive)
    # As `takeover_timeout_s`: recovering its last ledger is what a takeover waits for.
    recovery_timeout_s: float = option(30.0, "How long the recovery of one ledger may take (R4, R12).", positive)
    # Some round trips, with TLS and authentication, to a machine that is busy.
    connect_timeout_s: float = option(5.0, "How long connecting to a bookie may take.", positive)
    # A restart takes seconds; with fewer, each append after a failure would try the bookie that is away.
    bookie_retry_after_s: float = option(
        5.0, "How long a bookie that failed is left out of new ensembles; longer if it keeps failing.", positive
    )
    # Enough to copy one fragment's tail at `repair_bytes_per_s`. A longer wait holds up whoever takes over.
    write_quorum_timeout_s: float = option(
        20.0, "How long a close, roll or takeover waits for all copies, if they are guaranteed (W8).", positive
    )
    # Far more than a sync of any working disk, and less than a person notices.
    lagging_bookie_timeout_s: float = option(
        1.0, "After how long a bookie far behind the others that answers nothing is replaced.", positive
    )
    # A follower that waits is told at once; this is for those that come later, and costs a small message each.
    explicit_last_add_confirmed_after_s: float = option(
        0.1, "After how long an idle writer publishes its last add confirmed (W5).", positive
    )
    # A query costs as much as a read of nothing. It is repeated after this time, and up to 16 times as long in silence.
    follow_wait_s: float = option(1.0, "How long a bookie may keep a following reader's query open (D1).", positive)
    # Trimming is by whole segments, which rarely end more often.
    retention_interval_s: float = option(
        60.0, "How often the writer of a log drops what its retention does not keep (L3).", positive
    )
    # A bookie that is there answers in milliseconds; longer delays each takeover after a bookie died.
    absence_wait_s: float = option(
        2.0, "How long a recovery waits for a silent bookie before the others' denials decide (R10).", positive
    )
    # A bookie that comes back is used within a minute; asking more often costs connections that fail.
    bookie_retry_after_max_s: float = option(60.0, "The longest time that a failing bookie is left out.", positive)
    # Appends to the same bookie wait behind these bytes: 4 MiB are 40 ms at 100 MiB/s.
    repair_in_flight_bytes_max: int = option(4 * _MIB, "Bytes of copies on their way to one bookie.", positive)
    # More make appends wait, and are faster only where bookies are far away.
    repair_fragments_at_once: int = option(1, "Fragments that a repair copies at the same time.", at_least(1))
    audit_ledgers_at_once: int = option(2, "Ledgers that an audit asks about at the same time.", at_least(1))


def tuned(options: ClientOptions) -> ClientTuning:
    """The options with the constants, which give way to them: a batch is no larger than the bytes that may be in flight, a
    bookie has as long for a read as for an add, and a recovery as long as a takeover."""
    if isinstance(options, ClientTuning):
        return options
    chosen = {each.name: getattr(options, each.name) for each in attrs.fields(ClientOptions)}
    made = ClientTuning(**chosen)
    return attrs.evolve(
        made,
        batch_bytes_max=min(made.batch_bytes_max, options.in_flight_bytes_max),
        read_timeout_s=options.add_timeout_s,
        recovery_timeout_s=options.takeover_timeout_s,
    )
