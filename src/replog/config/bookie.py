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
    commit_bytes_max: int = option(8 * _MIB, "Bytes that one commit takes at most: one sync for all of them.", positive)
    commit_inline_when_idle: bool = option(
        False, "Commit a lone add in the caller's thread: less latency, but the event loop waits for the disk."
    )
    answer_bytes_max: int = option(4 * _MIB, "Bytes that one answer to a read holds at most.", positive)
    long_poll_max_s: float = option(30.0, "How long a query for a later last add confirmed may wait at most.", positive)
    garbage_collection_interval_s: float = option(
        600.0, "How often the bookie looks for deleted ledgers (B6).", positive
    )
    read_only_below_bytes: int = option(
        256 * _MIB,
        "With fewer free bytes on its disk a bookie takes no new entries, and makes space (B5).",
        at_least(0),
    )
    writable_above_bytes: int = option(512 * _MIB, "With this many free bytes it takes entries again.", at_least(0))
    announce_timeout_s: float = option(
        60.0,
        "How long a start waits while this bookie is still announced, as it is for a while after it was killed.",
        positive,
    )
    close_timeout_s: float = option(
        30.0, "How long leaving waits for a disk that does not answer, before it abandons the calls.", positive
    )

    repair: str = option(
        "off",
        "`auto`: the bookie takes part in audits and repairs of all ledgers, together with all other bookies that do.",
        _off_or_auto,
    )
    repair_away_after_s: float = option(
        600.0, "How long a bookie may be away before repairs replace it; a lost one is replaced at once.", at_least(0)
    )
    repair_interval_s: float = option(
        600.0, "How often repairs audit all ledgers, besides whenever a bookie comes or goes.", positive
    )
    repair_placement: str = option("random", "URL of the placement policy by which repairs choose other bookies.")

    heal: str = option(
        "auto",
        "`auto`: a bookie that lost something vouches again for ledgers whose records allow it (B8). `off`: it stays in doubt.",
        _off_or_auto,
    )
    heal_interval_s: float = option(
        60.0, "How often a bookie in doubt looks for such records, besides at its start.", positive
    )

    def contradictions(self) -> list[str]:
        """Faults of options that are valid one by one, but not together."""
        # Between the two limits a bookie stays as it is. With one limit, every
        # freed file would change its announcement.
        if self.writable_above_bytes < self.read_only_below_bytes:
            return [
                f"writable_above_bytes {self.writable_above_bytes} is less than "
                f"read_only_below_bytes {self.read_only_below_bytes}"
            ]
        return []
