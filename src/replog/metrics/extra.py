"""The packages of the extra `metrics`."""

from __future__ import annotations

from importlib.util import find_spec

from replog.errors import ConfigError

# Import names, and what pip calls these packages.
_PACKAGES = {"h11": "h11", "prometheus_client": "prometheus-client"}


def check_installed() -> None:
    """Raise `ConfigError` with the command to type unless the packages of the extra `metrics` are installed."""
    missing = [package for name, package in _PACKAGES.items() if find_spec(name) is None]
    if missing:
        raise ConfigError(f"metrics need {' and '.join(missing)}, not installed here: pip install 'replog[metrics]'")
