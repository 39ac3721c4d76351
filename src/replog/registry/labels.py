"""The labels that plugins give to the bookies of this program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replog.config import fault_of_labels
from replog.registry.loading import LoadedPlugins


class Labels:
    """Asks the loaded plugins."""

    def __init__(self, plugins: LoadedPlugins) -> None:
        self._plugins = plugins

    @property
    def is_given(self) -> bool:
        """True if a plugin has the hook."""
        return any(True for name in self._plugins.origins for _ in self._implementations(name))

    def ask(self) -> dict[str, str]:
        """All labels. Raises `PluginConflictError` if a plugin fails, or two contradict each other."""
        found: dict[str, str] = {}
        givers: dict[str, str] = {}
        for name in self._plugins.origins:
            for implementation in self._implementations(name):
                for label, value in self._of(name, implementation.function).items():
                    # The same value from two plugins is not a contradiction: both may ask the same cloud for the zone.
                    if found.setdefault(label, value) != value:
                        problem = f"its label {label}={value} contradicts {label}={found[label]} of {givers[label]!r}"
                        raise self._plugins.refused(name, problem)
                    givers.setdefault(label, name)
        return found

    def _implementations(self, name: str) -> list[Any]:
        return list(self._plugins.implementations(name, "replog_bookie_labels"))

    def _of(self, name: str, function: object) -> Mapping[str, str]:
        assert callable(function), "hooks were checked when they were loaded"
        try:
            labels = function()
        except Exception as error:
            raise self._plugins.refused(name, f"its replog_bookie_labels raised {error!r}") from error
        fault = fault_of_labels(labels) if isinstance(labels, Mapping) else f"they are {labels!r}, not a mapping"
        if fault is not None:
            raise self._plugins.refused(name, f"its labels are wrong: {fault}")
        return dict(labels)
