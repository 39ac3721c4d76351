"""What bookies measure, for Prometheus: `collect`, and a small server of `/metrics` and `/health`.

For an app that serves bookies: `await nursery.start(replog.metrics.serve_metrics, "127.0.0.1:9181", client.bookies)`. Names are
`replog_bookie_` and what `statistics()` calls it, with units and endings by Prometheus' conventions. Nothing is measured here:
reading what bookies count costs something only when somebody asks.
"""

from replog.metrics.collecting import collect
from replog.metrics.health import Health, health_of
from replog.metrics.http import MetricsOptions, serve_metrics

__all__ = ["Health", "MetricsOptions", "collect", "health_of", "serve_metrics"]
