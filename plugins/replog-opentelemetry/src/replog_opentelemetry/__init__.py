"""Spans and metrics of replog's writers, for OpenTelemetry.

`Telemetry` is a plugin that a program gives to its client: `Registry({"opentelemetry": Telemetry()})`. Rules:

- It observes, and changes nothing: what fails here is reported by replog's registry, and ends only the observing.
- A batch is one span, however many callers' entries it has. Their own spans are linked to it.
- Times are those that replog measured; a span's end is when the event came.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.trace import SpanContext, SpanKind

from replog.hookspecs import BatchConfirmed, Event, hookimpl

_NS = 1_000_000_000
_BATCHES_KEPT = 1024  # of those whose callers may still look for them
_LEDGERS_KEPT = 1024


class Telemetry:
    """The plugin. Without providers it uses those that the program has set for all."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer("replog", tracer_provider=tracer_provider)
        meter = metrics.get_meter("replog", meter_provider=meter_provider)
        self._durations = meter.create_histogram(
            "replog.batch.duration", "s", "From sending a batch until it is confirmed."
        )
        self._add_durations = meter.create_histogram(
            "replog.bookie.add.duration", "s", "From sending a batch until one bookie has acknowledged it."
        )
        self._entries = meter.create_counter("replog.entries", "{entry}", "Confirmed entries.")
        self._bytes = meter.create_counter("replog.bytes", "By", "Payload bytes of confirmed entries.")
        self._events = meter.create_counter("replog.events", "{event}", "What happened to ledgers, logs and bookies.")
        # By ledger: first and last entry of batches, and their spans
        self._batches: dict[int, deque[tuple[int, int, SpanContext]]] = {}

    # -- what replog tells --------------------------------------------------------------------------------------------

    @hookimpl
    def replog_observe_batches(self, event: BatchConfirmed) -> None:
        """A batch is a span, and what each bookie did for it is one in that."""
        ended_ns = time.time_ns()
        began_ns = ended_ns - int(event.duration_s * _NS)
        span = self._tracer.start_span(
            "replog batch",
            kind=SpanKind.PRODUCER,
            start_time=began_ns,
            attributes={
                "replog.ledger": event.ledger_id,
                "replog.first_entry": event.first_entry_id,
                "replog.last_entry": event.last_entry_id,
                "replog.bytes": event.size_bytes,
            },
        )
        within = trace.set_span_in_context(span)
        for bookie_id, answered_s in event.answered_s.items():
            of_bookie = {"replog.bookie": bookie_id}
            add = self._tracer.start_span(
                "replog add", within, kind=SpanKind.CLIENT, start_time=began_ns, attributes=of_bookie
            )
            add.end(began_ns + int(answered_s * _NS))
            self._add_durations.record(answered_s, of_bookie)
        span.end(ended_ns)
        self._durations.record(event.duration_s)
        self._entries.add(event.last_entry_id - event.first_entry_id + 1)
        self._bytes.add(event.size_bytes)
        self._keep(event, span.get_span_context())

    def _keep(self, event: BatchConfirmed, context: SpanContext) -> None:
        kept = self._batches.get(event.ledger_id)
        if kept is None:
            kept = self._batches[event.ledger_id] = deque(maxlen=_BATCHES_KEPT)
            if len(self._batches) > _LEDGERS_KEPT:
                del self._batches[next(iter(self._batches))]
        kept.append((event.first_entry_id, event.last_entry_id, context))

    @hookimpl
    def replog_observe(self, event: Event) -> None:
        """Counts all events; those that took some time are spans as well."""
        name = type(event).__name__
        self._events.add(1, {"replog.event": name})
        duration_s: float | None = getattr(event, "duration_s", None)
        if duration_s is not None:
            ended_ns = time.time_ns()
            attributes: dict[str, Any] = {"replog.event": name}
            for field in ("ledger_id", "log_name", "segment", "last_entry_id", "term"):
                value = getattr(event, field, None)
                if value is not None:
                    attributes[f"replog.{field.removesuffix('_id').removesuffix('_name')}"] = value
            began_ns = ended_ns - int(duration_s * _NS)
            self._tracer.start_span(f"replog {name}", start_time=began_ns, attributes=attributes).end(ended_ns)

    # -- what a program calls -----------------------------------------------------------------------------------------

    async def append(self, writer: Any, data: bytes, **options: Any) -> Any:
        """`writer.append(data)` in a span of the caller's trace. Returns and raises the same; an error is in the span, too.

        `writer` is the writer of a log or of a ledger. When it returns, the span is linked to that of the entry's batch."""
        with self._tracer.start_as_current_span("replog append", attributes={"replog.bytes": len(data)}) as span:
            before = writer.ledger_id
            appended = await writer.append(data, **options)
            entry_id = appended if isinstance(appended, int) else appended.entry
            span.set_attribute("replog.position", str(appended))
            # A log may have begun another ledger meanwhile.
            for ledger_id in {before, writer.ledger_id}:
                batch = self._batch_of(ledger_id, entry_id)
                if batch is not None:
                    span.set_attribute("replog.ledger", ledger_id)
                    span.add_link(batch)
            return appended

    def _batch_of(self, ledger_id: int, entry_id: int) -> SpanContext | None:
        for first, last, context in reversed(self._batches.get(ledger_id, ())):
            if first <= entry_id <= last:
                return context
        return None
