"""Measurements of bookies, logs and state machines, for Prometheus: a small server of `/metrics` and `/health`, and its
content.

For an app that serves bookies: `await nursery.start(replog.metrics.serve_metrics, "127.0.0.1:9181", client.bookies)`.
With `logs=LogMetrics(client)` logs and their cursors are looked at whenever somebody asks; `machines=[counters]` are
those that run here. Names begin with `replog_bookie_`, `replog_log_`, `replog_cursor_` or `replog_machine_`, with units
and endings by the conventions of Prometheus. Nothing is measured here: reading known values costs something only on
request. All but health and options needs the extra `metrics`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from replog.metrics.health import Health, health_of
from replog.metrics.requirements import check_installed

if TYPE_CHECKING:
    from replog.metrics.collecting import collect
    from replog.metrics.logs import LogMetrics
    from replog.metrics.machines import collect_machines
    from replog.metrics.server import serve_metrics

__all__ = ["Health", "LogMetrics", "collect", "collect_machines", "health_of", "serve_metrics"]

# What needs the packages of the extra, and the module that has it. It is imported when a program asks for it: health, options and
# `replog bookie` without --metrics work without the extra.
_OF_EXTRA = {
    "LogMetrics": "replog.metrics.logs",
    "collect": "replog.metrics.collecting",
    "collect_machines": "replog.metrics.machines",
    "serve_metrics": "replog.metrics.server",
}


def __getattr__(name: str) -> Any:
    if name not in _OF_EXTRA:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_installed()
    return getattr(import_module(_OF_EXTRA[name]), name)
