"""The options and the address of the metrics' HTTP server, and whether the extra `metrics` is installed. Needs none of it."""

from __future__ import annotations

from importlib.util import find_spec

import attrs

from replog.config import Checked, at_least, option, positive
from replog.errors import ConfigError

# Import names of the extra's packages, and what pip calls them.
_PACKAGES = {"h11": "h11", "prometheus_client": "prometheus-client"}


@attrs.frozen(kw_only=True)
class MetricsOptions(Checked):
    """Limits of the metrics' HTTP server."""

    connections_max: int = option(16, "Connections at a time; further ones are cut off.", at_least(1))
    request_bytes_max: int = option(16 << 10, "How long a request may be.", at_least(256))
    timeout_s: float = option(10.0, "How long one may take to ask and to take the answer.", positive)


def parse_listen(listen: str) -> tuple[str, int]:
    """Host and port of HOST:PORT. Raises `ConfigError`."""
    host, colon, port = listen.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ConfigError(f"metrics: {listen!r} is not an address: expected HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def check_installed() -> None:
    """Raise `ConfigError` with the command to type unless the packages of the extra `metrics` are installed."""
    missing = [package for name, package in _PACKAGES.items() if find_spec(name) is None]
    if missing:
        raise ConfigError(f"metrics need {' and '.join(missing)}, not installed here: pip install 'replog[metrics]'")
