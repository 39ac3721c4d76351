"""The options of bookies."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from replog.config.checks import Checked, at_least, option, positive
from replog.config.labels import check_labels
from replog.config.urls import BackendURL
from replog.errors import ConfigError
from replog.protocol.batch import ENTRY_BYTES_MAX

_MIB = 1 << 20


def _off_or_auto(value: object) -> str | None:
    return None if value in ("off", "auto") else f"{value!r} must be off or auto"


def _listen_urls(value: object) -> str | None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return f'{value!r} must be a list of URLs, as ("tcp:0.0.0.0:3181",)'
    for each in value:
        try:
            BackendURL.parse(each)
        except ConfigError:
            return f"{each!r} must be a URL, as tcp:0.0.0.0:3181 or unix:/run/app/bookie.sock"
    return None


@attrs.frozen(kw_only=True)
class BookieOptions(Checked):
    """How a bookie stores and serves. Environment: `REPLOG_BOOKIE_...`; in a file: the table `bookie`."""

    storage: str = option("files", "URL of the storage, without the directory if it is embedded: scheme?option=value.")
    listen: tuple[str, ...] = option(
        (),
        "URLs to listen on for other processes, as `tcp:0.0.0.0:3181` or `unix:/run/app/bookie.sock`. Clients in the same trio "
        "run need none.",
        _listen_urls,
    )
    authentication: str = option("none", "URL of the authenticator that proves who connects from other processes.")
    labels: tuple[str, ...] = option(
        (), "What placement policies may know of it, as `zone=a` or `rack=r1`; before those of plugins.", check_labels
    )
    queue_bytes_max: int = option(
        64 * _MIB,
        "Bytes that wait for the disk; past them requests are refused as too busy.",
        # The largest entry must fit: a bookie with a smaller queue would refuse it as too busy each time.
        at_least(ENTRY_BYTES_MAX),
    )
    read_only_below_bytes: int = option(
        256 * _MIB,
        "With fewer free bytes on its disk a bookie takes no new entries, and makes space; with twice as many it does (B5).",
        at_least(0),
    )

    repair: str = option(
        "off",
        "`auto`: the bookie takes part in audits and repairs of all ledgers, together with all other bookies that do.",
        _off_or_auto,
    )
    repair_away_after_s: float = option(
        600.0, "How long a bookie may be away before repairs replace it; a lost one is replaced at once.", at_least(0)
    )
    repair_placement: str = option("random", "URL of the placement policy by which repairs choose other bookies.")


@attrs.frozen(kw_only=True)
class BookieTuning(BookieOptions):
    """A bookie's options, and beside them the constants of bookies. No configuration sets these; tests do, to be quick."""

    # A sync of 8 MiB takes as long as the write itself: more gains no throughput, and delays what is in it.
    commit_bytes_max: int = option(8 * _MIB, "Bytes that one commit takes at most: one sync for all of them.", positive)
    # One answer in memory for each of many readers. A larger one saves less than a hundredth of the requests.
    answer_bytes_max: int = option(4 * _MIB, "Bytes that one answer to a read holds at most.", positive)
    # Clients ask for less. The limit is for those that never come back for the answer.
    long_poll_max_s: float = option(30.0, "How long a query for a later last add confirmed may wait at most.", positive)
    # A lone add in the caller's thread has less latency, and its event loop waits for the disk: for the fast disks that it is
    # done on, less time than two changes of thread take. Not where trio is a guest (`bookie/serving.py`).
    commit_inline_when_idle: bool = option(False, "Commit a lone add in the caller's thread while the disk is fast.")
    # Trimming and deleting give space back some minutes later, and `collect_garbage` at once. A look lists all ledgers.
    garbage_collection_interval_s: float = option(
        600.0, "How often the bookie looks for deleted ledgers (B6).", positive
    )
    # As it is for a while after it was killed. Leases are 10 s by default; with longer ones it is twice the lease.
    announce_timeout_s: float = option(60.0, "How long a start waits while this bookie is still announced.", positive)
    # What a disk needs at worst that is not broken: kernels give a command up after 30 s.
    close_timeout_s: float = option(
        30.0, "How long leaving waits for a disk that does not answer, before it abandons the calls.", positive
    )
    # Whatever matters sooner, a bookie that comes or goes, begins an audit at once.
    repair_interval_s: float = option(600.0, "How often repairs audit all ledgers.", positive)
    # Off, a bookie that lost something stays in doubt until it is replaced: for tests of doubt.
    heal: str = option(
        "auto",
        "`auto`: a bookie that lost something vouches again for ledgers whose records allow it (B8).",
        _off_or_auto,
    )
    # It looks at its start, and what it waits for, a record that changes, takes people or a repair minutes.
    heal_interval_s: float = option(
        60.0, "How often a bookie in doubt looks for records that allow it to vouch.", positive
    )

    @property
    def writable_above_bytes(self) -> int:
        """With this many free bytes it takes entries again."""
        # Between the two limits a bookie stays as it is. With one limit, every freed file would change its announcement.
        return 2 * self.read_only_below_bytes


def tuned(options: BookieOptions) -> BookieTuning:
    """The options with the constants."""
    if isinstance(options, BookieTuning):
        return options
    return BookieTuning(**{each.name: getattr(options, each.name) for each in attrs.fields(BookieOptions)})
