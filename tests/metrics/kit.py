"""What is served as metrics, as Prometheus' own parser reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector


def samples_of(families: Iterable[Metric]) -> dict[str, dict[tuple[str, ...], float]]:
    """By the name of the sample, and the values of its labels; each once."""

    class Once(Collector):
        def collect(self) -> Iterator[Metric]:
            return iter(families)

    registry = CollectorRegistry()
    registry.register(Once())
    return parsed(generate_latest(registry).decode())


def parsed(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """The same of a text."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values = found.setdefault(sample.name, {})
            key = labels(sample.labels)
            assert key not in values, (sample.name, key)
            values[key] = sample.value
    return found


def labels(found: Mapping[str, str]) -> tuple[str, ...]:
    """The values of labels, by the order of their names."""
    return tuple(found[name] for name in sorted(found))
