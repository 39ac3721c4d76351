"""The address of the metrics' HTTP server, and whether the extra `metrics` is installed. Needs none of it."""

from __future__ import annotations

from importlib.util import find_spec

from replog.errors import ConfigError

# Import names of the extra's packages, and what pip calls them.
_PACKAGES = {"prometheus_client": "prometheus-client"}


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
