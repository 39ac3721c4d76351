"""The offers of plugins: backends, by kind and scheme."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

import attrs

from replog.abc import Archive, Authenticator, BackupPlace, Metastore, PlacementPolicy, Storage, Transport
from replog.config import BackendURL
from replog.errors import ConfigError, PluginConflictError, PluginNotFoundError
from replog.hookspecs import Backend
from replog.registry.loading import LoadedPlugins
from replog.registry.plugin_errors import DISABLED_VARIABLE

# The kinds of backends: the hook that offers them, and the seam that they implement.
KINDS: dict[str, tuple[str, type]] = {
    "storage": ("replog_storages", Storage),
    "transport": ("replog_transports", Transport),
    "metastore": ("replog_metastores", Metastore),
    "placement": ("replog_placements", PlacementPolicy),
    "authenticator": ("replog_authenticators", Authenticator),
    "backup": ("replog_backup_places", BackupPlace),
    "archive": ("replog_archives", Archive),
}

# Schemes that plugins in packages of their own serve, and these packages.
_ELSEWHERE = {
    ("archive", "az"): "replog-objects",
    ("archive", "gs"): "replog-objects",
    ("archive", "s3"): "replog-objects",
    ("backup", "az"): "replog-objects",
    ("backup", "gs"): "replog-objects",
    ("backup", "s3"): "replog-objects",
    ("metastore", "etcd"): "replog-etcd",
    ("metastore", "objects"): "replog-objects",
    ("metastore", "sqlite"): "replog-sqlite",
}


@attrs.frozen
class Offer:
    """A backend, and the plugin that offers it."""

    backend: Backend[Any]
    plugin: str


class Offers:
    """The offers of the loaded plugins, by kind and scheme."""

    def __init__(self, plugins: LoadedPlugins) -> None:
        self._plugins = plugins
        self._offers: dict[tuple[str, str], Offer] = {}

    def collect(self, plugin: str) -> None:
        """Adds what this plugin offers. Raises `PluginConflictError`, and then adds nothing."""
        # A copy: a plugin whose last offer is wrong must not leave its first ones behind.
        known = dict(self._offers)
        try:
            for kind, (hook, _) in KINDS.items():
                for implementation in self._plugins.implementations(plugin, hook):
                    for backend in self._offered(plugin, hook, implementation.function):
                        self._add(kind, backend, plugin)
        except PluginConflictError:
            self._offers = known
            raise

    def by(self, plugin: str) -> dict[tuple[str, str], Backend[Any]]:
        """The offers of this plugin."""
        return {key: offer.backend for key, offer in self._offers.items() if offer.plugin == plugin}

    def find(self, kind: str, scheme: str) -> Offer:
        """The offer of this kind under this scheme. Raises `PluginNotFoundError` with the known schemes, and advice."""
        offer = self._offers.get((kind, scheme))
        if offer is not None:
            return offer
        known = sorted(name for of_kind, name in self._offers if of_kind == kind)
        problem = f"no plugin offers the {kind} scheme {scheme!r}; known: {', '.join(known) or 'none'}"
        raise PluginNotFoundError("; ".join([problem, *self._hints(kind, scheme, known)]))

    def _hints(self, kind: str, scheme: str, known: list[str]) -> list[str]:
        plugins = self._plugins
        elsewhere = {name: remedy for (of_kind, name), remedy in _ELSEWHERE.items() if of_kind == kind}
        likely = difflib.get_close_matches(scheme, [*known, *(each for each in elsewhere if each != scheme)], n=1)
        hints = []
        if remedy := elsewhere.get(scheme):
            hints.append(f"for {scheme}: pip install '{remedy}'")
        elif likely:
            hints.append(f"did you mean {likely[0]!r}?")
        if plugins.missing:
            needs = [f"{name} needs: pip install '{extra}'" for name, extra in sorted(plugins.missing.items())]
            hints.append(f"not loaded: {'; '.join(needs)}")
        if plugins.wrong:
            hints.append(f"left out, since they are wrong: {', '.join(fault.name for fault, _ in plugins.wrong)}")
        if plugins.disabled:
            hints.append(f"disabled: {', '.join(sorted(plugins.disabled))}")
        return hints

    def _offered(self, plugin: str, hook: str, function: Callable[[], object]) -> list[Backend[Any]]:
        try:
            offered = function()
        except Exception as error:
            raise self._plugins.refused(plugin, f"its {hook} raised {error!r}") from error
        if not isinstance(offered, list | tuple) or not all(isinstance(each, Backend) for each in offered):
            raise self._plugins.refused(plugin, f"its {hook} returned {offered!r}: it must be a list of Backend")
        return list(offered)

    def _add(self, kind: str, backend: Backend[Any], plugin: str) -> None:
        refused, what = self._plugins.refused, f"its {kind} {backend.scheme!r}"
        if not _is_scheme(backend.scheme):
            allowed = "lower-case letters, then also digits and '+', '.', '-'"
            raise refused(plugin, f"{what}: that is not a scheme: {allowed}")
        if not callable(backend.open) or inspect.iscoroutinefunction(backend.open):
            is_what = "is asynchronous" if callable(backend.open) else f"is {backend.open!r}"
            raise refused(plugin, f"`open` of {what} {is_what}: it must be a plain function")
        if not attrs.has(backend.options_class):
            raise refused(plugin, f"the options of {what} are not an attrs class: {backend.options_class!r}")
        # Compared by the backend, not by the plugin: one plugin that offers a scheme twice contradicts itself, too.
        other = self._offers.setdefault((kind, backend.scheme), Offer(backend, plugin))
        if other.backend is not backend:
            origins = self._plugins.origins
            raise PluginConflictError(
                f"the {kind} scheme {backend.scheme!r} is claimed by two plugins, {other.plugin!r} of "
                f"{origins[other.plugin]} and {plugin!r} of {origins[plugin]}: "
                f"uninstall one, or set {DISABLED_VARIABLE} to its name"
            )


def _is_scheme(text: object) -> bool:
    try:
        return isinstance(text, str) and BackendURL.parse(text) == BackendURL(text)
    except ConfigError:
        return False
