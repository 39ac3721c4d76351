"""What bookies measure, for Prometheus: `collect`, and a small server of `/metrics` and `/health`.

For an app that serves bookies: `await nursery.start(replog.metrics.serve_metrics, "127.0.0.1:9181", client.bookies)`. Names are
`replog_bookie_` and what `statistics()` calls it, with units and endings by Prometheus' conventions. Nothing is measured here:
reading what bookies count costs something only when somebody asks. `collect` and `serve_metrics` need the extra `metrics`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from replog.metrics.extra import check_installed
from replog.metrics.health import Health, health_of
from replog.metrics.options import MetricsOptions

if TYPE_CHECKING:
    from replog.metrics.collecting import collect
    from replog.metrics.http import serve_metrics

__all__ = ["Health", "MetricsOptions", "collect", "health_of", "serve_metrics"]

# What needs the packages of the extra, and the module that has it. It is imported when a program asks for it: health, options and
# `replog bookie` without --metrics work without the extra.
_OF_EXTRA = {"collect": "replog.metrics.collecting", "serve_metrics": "replog.metrics.http"}


def __getattr__(name: str) -> Any:
    if name not in _OF_EXTRA:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_installed()
    return getattr(import_module(_OF_EXTRA[name]), name)
