"""What the plugin says of appends, batches and takeovers: spans and metrics, as OpenTelemetry's own tools in memory get them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import replog
from replog.registry import Registry
from replog_opentelemetry import Telemetry


class Told:
    """What OpenTelemetry was told."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.telemetry = Telemetry(self.tracers, MeterProvider([self._reader]))

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def points(self, name: str) -> Iterator[Any]:
        data: Any = self._reader.get_metrics_data()
        for of_resource in data.resource_metrics:
            for of_scope in of_resource.scope_metrics:
                for metric in of_scope.metrics:
                    if metric.name == name:
                        yield from metric.data.data_points


@asynccontextmanager
async def embedded(directory: Path, told: Told) -> AsyncIterator[replog.Client]:
    registry = Registry({"opentelemetry": told.telemetry})
    async with replog.embed(directory, bookies=3, storage="memory", registry=registry) as client:
        yield client


async def test_append_is_linked_to_its_batch_and_its_bookies(tmp_path: Path) -> None:
    told = Told()
    async with embedded(tmp_path, told) as client, client.write_log("log") as log:
        ledger_id = log.ledger_id
        with told.tracers.get_tracer("app").start_as_current_span("request") as request:
            position = await told.telemetry.append(log, b"data")
    assert isinstance(position, replog.Position)
    [append] = told.spans("replog append")
    assert append.parent is not None
    assert append.parent.span_id == request.get_span_context().span_id, "it is in the caller's trace"
    assert append.attributes is not None
    assert append.attributes["replog.position"] == str(position)
    [batch] = told.spans("replog batch")
    assert [link.context.span_id for link in append.links] == [batch.context.span_id]
    assert dict(batch.attributes or {}) == {
        "replog.ledger": ledger_id,
        "replog.first_entry": 0,
        "replog.last_entry": 0,
        "replog.bytes": 4,
    }
    adds = told.spans("replog add")
    assert 2 <= len(adds) <= 3, "an ack quorum had answered"
    for add in adds:
        assert add.parent is not None
        assert add.parent.span_id == batch.context.span_id
        assert batch.start_time is not None
        assert batch.end_time is not None
        assert add.start_time == batch.start_time
        assert add.end_time is not None
        assert batch.start_time <= add.end_time <= batch.end_time


async def test_each_entry_is_in_one_batch_and_counted_once(tmp_path: Path) -> None:
    told = Told()
    async with embedded(tmp_path, told) as client:
        async with client.write_log("log") as log, trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(told.telemetry.append, log, b"%d" % number)
            await log.extend([b"many"] * 30)
            log.push_nowait(b"pushed")
            await log.roll()
            await told.telemetry.append(log, b"in the next segment")
    ranges: dict[int, list[int]] = {}
    for batch in told.spans("replog batch"):
        assert batch.attributes is not None
        found: Any = batch.attributes
        entries = range(found["replog.first_entry"], found["replog.last_entry"] + 1)
        ranges.setdefault(found["replog.ledger"], []).extend(entries)
    assert sorted(sorted(each) for each in ranges.values()) == [[0], list(range(81))]
    assert [point.value for point in told.points("replog.entries")] == [82]
    assert [point.count for point in told.points("replog.batch.duration")] == [len(told.spans("replog batch"))]
    assert len(list(told.points("replog.bookie.add.duration"))) >= 2, "by bookie"
    appends = told.spans("replog append")
    assert [len(append.links) for append in appends] == [1] * 51


async def test_deposed_writer_leaves_an_error_in_its_span(tmp_path: Path) -> None:
    told = Told()
    async with embedded(tmp_path, told) as client:
        with pytest.raises(replog.FencedError):
            async with client.write_log("log") as log:
                await log.append(b"0")
                async with client.write_log("log"):
                    pass
                await told.telemetry.append(log, b"1")
    [append] = told.spans("replog append")
    assert append.status.status_code is StatusCode.ERROR
    assert [event.name for event in append.events] == ["exception"]
    assert not append.links
    takeovers = [dict(span.attributes or {}) for span in told.spans("replog LogTakenOver")]
    assert [(each["replog.log"], each["replog.segment"]) for each in takeovers] == [("log", 1), ("log", 2)]
    counted = {point.attributes["replog.event"]: point.value for point in told.points("replog.events")}
    assert counted["LogTakenOver"] == 2
    assert counted["WriterFenced"] == 1
