"""Prometheus' families of gauges and counters that are filled one sample at a time, and left out while they are empty."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric


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
