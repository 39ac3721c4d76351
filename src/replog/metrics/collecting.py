"""Turns the counters of bookies into Prometheus' families.

Conventions: base units in the name (`_seconds`, `_bytes`), `_total` for what only grows. Counters of a plugin's storage
or transport come out too, as gauges, since it is unknown here whether they only grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import trio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from replog.bookie.serving import ServedBookie
from replog.errors import StorageError
from replog.runtime.installed import replog_version
from replog.runtime.latencies import LatencyHistogram

# -- families ---------------------------------------------------------------------------------------------------------
#
# Prometheus' families of gauges and counters that are filled one sample at a time, and left out while they are empty.


class Families:
    """Families with one prefix and the same labels. A value that is None is unknown, and has no sample."""

    def __init__(
        self, prefix: str, labels: Sequence[str], *, gauges: Mapping[str, str], counters: Mapping[str, str]
    ) -> None:
        self._families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            name: GaugeMetricFamily(f"{prefix}{name}", meaning, labels=labels) for name, meaning in gauges.items()
        }
        for name, meaning in counters.items():
            self._families[name] = CounterMetricFamily(f"{prefix}{name}", meaning, labels=labels)

    def add(self, labels: Sequence[str], values: Mapping[str, float | None]) -> None:
        """One sample of each family that is named here, with these labels."""
        for name, value in values.items():
            if value is not None:
                self._families[name].add_metric(labels, float(value))

    def __iter__(self) -> Iterator[Metric]:
        return (each for each in self._families.values() if each.samples)


# -- collecting -------------------------------------------------------------------------------------------------------
#
# Turns the counters of bookies into Prometheus' families.
#
# Conventions: base units in the name (`_seconds`, `_bytes`), `_total` for what only grows. Counters of a plugin's storage
# or transport come out too, as gauges, since it is unknown here whether they only grow.


PREFIX = "replog_bookie_"


def _of_sockets(**meanings: str) -> dict[str, str]:
    """By the names of what transports with sockets count: each has its scheme before it."""
    return {f"{scheme}_{name}": meaning for scheme in ("tcp", "unix") for name, meaning in meanings.items()}


_COUNTERS = {
    "commits": "Commits to the storage: one sync each.",
    "batches": "Batches that were stored.",
    "committed_bytes": "Bytes that were committed.",
    "added_batches": "Batches of adds that were accepted.",
    "added_entries": "Entries of adds that were accepted.",
    "added_bytes": "Bytes of adds that were accepted.",
    "fence_requests": "Fences that were accepted.",
    "recovery_reads": "Recovery reads that were accepted.",
    "reads": "Plain reads that were answered.",
    "read_bytes": "Bytes that plain reads were answered with.",
    "garbage_collections": "Passes that looked for deleted ledgers.",
    "garbage_collection_failures": "Such passes that failed.",
    "ledgers_collected": "Deleted ledgers that were dropped.",
    "deletion_hints": "Times that a client said that it has deleted a ledger.",
    "compaction_failures": "Compactions that failed.",
    "attempts_to_make_space": "Compactions because space was short.",
    "forced_garbage_collections": "Garbage collections that were asked for.",
    "forced_compactions": "Compactions that were asked for.",
    "forced_scrubs": "Scrubs that were asked for.",
    "minor_compactions": "Minor compactions.",
    "major_compactions": "Major compactions.",
    "copied_bytes": "Bytes that compactions copied.",
    "copied_batches": "Batches that compactions copied.",
    "scrubs": "Times that all that is stored was read and checked.",
    "scrubbed_bytes": "Bytes that were read and checked.",
    "removed_files": "Files that were removed.",
    "removed_pieces": "Pieces of deleted ledgers that were removed.",
    "catalogs_written": "Catalogs that were written.",
    "journal_recycled_files": "Journal files that were used again.",
    "ledger_cache_loaded_pages": "Pages of indexes that were read.",
    "page_cache_dropped_bytes": "Bytes of log files that were dropped from the page cache, as newer ones were written.",
    "map_growths": "Times that the map grew.",
    "damaged_batches_found": "Damaged batches that were found.",
    "damage_reports": "Damaged batches that observers were told of.",
    "doubts_raised": "Times that the storage came to doubt all its ledgers.",
    "repair_audits": "Audits by the bookie's own repairs.",
    "repair_failures": "Audits and repairs that the metastore's errors ended.",
    "repair_passes_cut": "Repairs that were begun again, because bookies came, went or were declared lost.",
    "repair_copied_batches": "Batches that the bookie's own repairs copied.",
    "repair_copied_bytes": "Bytes that the bookie's own repairs copied.",
    "repair_fragments": "Fragments that the bookie's own repairs filled or moved.",
    **_of_sockets(
        accepted_connections="Connections that were heard.",
        refused_connections="Connections that were not: too many, or too many failures before.",
        failed_handshakes="Peers that could not introduce themselves.",
        received_bytes="Bytes that were received.",
        sent_bytes="Bytes that were sent.",
    ),
}

_GAUGES = {
    "queued_bytes": "Bytes of requests that wait for the disk.",
    "queued_requests": "Requests that were accepted and not answered.",
    "last_commit_s": "How long the last commit took.",
    "ledgers_in_memory": "Ledgers whose state is in memory.",
    "active_ledgers": "Ledgers that were added to lately.",
    "waiting_polls": "Questions for a later last add confirmed that wait.",
    "read_only": "1 if no new entries are taken.",
    "metastore_doubted": "1 if the metastore seems to have gone back: nothing is dropped, no new ledger taken.",
    "metastore_leads": "1 if the member of the metastore in this process leads.",
    "metastore_term": "The term of that member: it rises with each election.",
    "metastore_committed_index": "The last entry of the metastore's log that this member knows to be committed.",
    "metastore_stopped": "1 if that member has stopped, since its disk failed.",
    "metastore_survives": "How many members may be lost until no majority answers, as the leader counts; -1: none answers now.",
    "free_bytes": "Bytes that the disk still takes.",
    "ledgers": "Ledgers that are stored.",
    "damaged_batches": "Stored batches that can't be read.",
    "uptime_s": "How long the bookie has been served.",
    "started_at_s": "When the bookie was started, by the time of day.",
    "repair_paused": "1 while all repairs are paused on command.",
    "repair_fragments_left": "Fragments that the repair under way has still to fill.",
    "repair_audited_ledgers": "Ledgers that the bookie's last audit looked at: its share of all.",
    "repair_under_replicated": "Fragments that lacked copies at the bookie's last audit.",
    "repair_misplaced": "Fragments that the bookie's last audit found where the placement policy does not want them.",
    "repair_last_audit_s": "How long the bookie's last audit took.",
    "repair_since_audit_s": "How long ago the bookie's last audit ended.",
    **_of_sockets(
        connections="Connections that are open.",
        handshakes="Connections that are introducing themselves.",
    ),
}

_HISTOGRAMS = {
    "commit": "How long the storage took to make a group of requests durable.",
    "answer": "How long a group of requests took from its first one's arrival to its answers.",
}


def collect(bookies: Iterable[ServedBookie]) -> Iterator[Metric]:
    """The measurements of these bookies, as Prometheus' families with the label `bookie`. For their trio thread."""
    served = tuple(bookies)
    info = InfoMetricFamily("replog_bookie", "The bookies that are served here.", labels=["bookie"])
    failed = GaugeMetricFamily(
        f"{PREFIX}storage_failed", "1 if the storage has stopped permanently.", labels=["bookie"]
    )
    found: dict[str, dict[str, float]] = {}
    latencies: dict[str, dict[str, LatencyHistogram]] = {}
    for each in served:
        bookie_id = each.bookie_id
        info.add_metric([bookie_id], {"version": replog_version()})
        failed.add_metric([bookie_id], float(each.failure is not None))
        for name, value in _statistics(each).items():
            if name == "storage_failed":
                continue  # told above, also when nothing else can be
            found.setdefault(name, {})[bookie_id] = value
        for name, histogram in each.latencies().items():
            latencies.setdefault(name, {})[bookie_id] = histogram
    yield info
    yield failed
    for name in sorted(found):
        yield _family(name, found[name])
    for name in sorted(latencies):
        yield _histogram(name, latencies[name])


def _statistics(bookie: ServedBookie) -> Mapping[str, float]:
    try:
        return bookie.statistics()
    except (StorageError, trio.ClosedResourceError):  # it has stopped, which is a metric of its own, or is being left
        return {}


def _family(name: str, by_bookie: Mapping[str, float]) -> Metric:
    spelled = f"{PREFIX}{name.removesuffix('_s')}_seconds" if name.endswith("_s") else f"{PREFIX}{name}"
    family: CounterMetricFamily | GaugeMetricFamily
    if name in _COUNTERS:
        family = CounterMetricFamily(spelled, _COUNTERS[name], labels=["bookie"])
    else:
        words = _GAUGES.get(name, f"{name.replace('_', ' ').capitalize()}, as the storage or transport says.")
        family = GaugeMetricFamily(spelled, words, labels=["bookie"])
    for bookie_id, value in by_bookie.items():
        family.add_metric([bookie_id], value)
    return family


def _histogram(name: str, by_bookie: Mapping[str, LatencyHistogram]) -> Metric:
    family = HistogramMetricFamily(
        f"{PREFIX}{name}_latency_seconds", _HISTOGRAMS.get(name, name.capitalize()), labels=["bookie"]
    )
    for bookie_id, histogram in by_bookie.items():
        buckets = [("+Inf" if bound == float("inf") else repr(bound), count) for bound, count in histogram.cumulative()]
        family.add_metric([bookie_id], buckets, histogram.total_s)
    return family
