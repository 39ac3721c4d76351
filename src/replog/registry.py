"""Which plugins there are, what they offer, and opening what a URL names.

Rules: there is no registry until somebody makes one, and importing this module imports no plugin. The built-ins register
through the same hooks as a stranger's plugin. Whatever is wrong with a plugin is an error that names it, at once: a
misspelt or asynchronous hook, a scheme that two claim, a module that cannot be imported.
"""

from __future__ import annotations

import importlib
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, NoReturn

import attrs
import pluggy

from replog import hookspecs
from replog.abc import Authenticator, Metastore, PlacementPolicy, Storage, Transport
from replog.config import BackendURL, structure
from replog.errors import PluginConflictError, PluginNotFoundError
from replog.hookspecs import PROJECT_NAME, Backend, Event

DISABLED_VARIABLE = "REPLOG_PLUGINS_DISABLED"
ENTRY_POINT_GROUP = "replog"

# Name of the plugin, its module, and the extra of replog that it needs, if any.
_BUILTINS = (
    ("random-placement", "replog.placement", ""),
    ("memory-storage", "replog.backends.memory", ""),
    ("files-storage", "replog.backends.files", ""),
    ("lmdb-storage", "replog.backends.lmdb", ""),
    ("memory-transport", "replog.transports.memory", ""),
    ("tcp-transport", "replog.transports.tcp", ""),
    ("no-authentication", "replog.authentication.nothing", ""),
    ("secret-authentication", "replog.authentication.secret", ""),
    ("tls-authentication", "replog.authentication.tls", ""),
    ("memory-metastore", "replog.metastores.memory", ""),
    ("lmdb-metastore", "replog.metastores.lmdb", ""),
    ("zookeeper-metastore", "replog.metastores.zookeeper", "zookeeper"),
)

# Schemes that no loaded plugin may serve, and what brings them.
_ELSEWHERE = {
    ("metastore", "etcd"): "replog-etcd",
    ("metastore", "sqlite"): "replog-sqlite",
}

_KINDS: dict[str, tuple[str, type]] = {
    "storage": ("replog_storages", Storage),
    "transport": ("replog_transports", Transport),
    "metastore": ("replog_metastores", Metastore),
    "placement": ("replog_placements", PlacementPolicy),
    "authenticator": ("replog_authenticators", Authenticator),
}


@attrs.frozen
class PluginInfo:
    """One loaded plugin: its name, where it comes from, what it offers (as "metastore lmdb"), whether it observes."""

    name: str
    origin: str
    offers: tuple[str, ...]
    observes: bool


@attrs.frozen
class _Offer:
    backend: Backend[Any]
    plugin: str


class Registry:
    """The plugins of one program: the built-ins, then those installed with an entry point in the group `replog`, then
    `plugins` given by name. Names in `disabled`, and in the environment's `REPLOG_PLUGINS_DISABLED` (with commas), are
    left out. Raises `PluginConflictError` if one of them is wrong or two contradict each other; nothing is then loaded.
    """

    def __init__(
        self,
        plugins: Mapping[str, object] | None = None,
        *,
        load_installed: bool = True,
        disabled: Iterable[str] = (),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        from_environment = (name.strip() for name in environment.get(DISABLED_VARIABLE, "").split(","))
        self._disabled = {*disabled, *(name for name in from_environment if name)}
        self._manager = pluggy.PluginManager(PROJECT_NAME)
        self._manager.add_hookspecs(hookspecs)
        self._origins: dict[str, str] = {}
        self._missing: dict[str, str] = {}  # plugin left out -> what to install
        self._offers: dict[tuple[str, str], _Offer] = {}
        self._observers: dict[str, Callable[[Event], object]] = {}
        self._register_builtins()
        if load_installed:
            self._register_installed()
        for name, plugin in (plugins or {}).items():
            self._register(name, plugin, "given by the program")
        self._check_hooks()
        self._collect_offers()

    # -- opening --------------------------------------------------------------------------------------------------

    def open_storage(self, url: str | BackendURL) -> Storage:
        """Opens a bookie's storage. May block: call it in a worker thread. Raises `ConfigError`, `StorageError`."""
        opened: Storage = self._open("storage", url)
        return opened

    def open_transport(self, url: str | BackendURL) -> Transport:
        """Makes a transport. Raises `ConfigError`."""
        opened: Transport = self._open("transport", url)
        return opened

    def open_metastore(self, url: str | BackendURL) -> Metastore:
        """Makes a metastore, which connects at its first call. Raises `ConfigError`."""
        opened: Metastore = self._open("metastore", url)
        return opened

    def open_placement(self, url: str | BackendURL) -> PlacementPolicy:
        """Makes a placement policy. Raises `ConfigError`."""
        opened: PlacementPolicy = self._open("placement", url)
        return opened

    def open_authenticator(self, url: str | BackendURL) -> Authenticator:
        """Makes what proves who one is; may read files. Raises `ConfigError`."""
        opened: Authenticator = self._open("authenticator", url)
        return opened

    def backend(self, kind: str, scheme: str) -> Backend[Any]:
        """What is offered as this kind ("storage", "transport", "metastore", "placement", "authenticator") under this scheme.

        Raises `PluginNotFoundError`, listing the known schemes and what to install for others.
        """
        offer = self._offers.get((kind, scheme))
        if offer is not None:
            return offer.backend
        known = ", ".join(sorted(name for of_kind, name in self._offers if of_kind == kind)) or "none"
        remedy = _ELSEWHERE.get((kind, scheme))
        hint = f"; for {scheme}: pip install '{remedy}'" if remedy else ""
        left_out = "; ".join(f"{name} needs: pip install '{extra}'" for name, extra in sorted(self._missing.items()))
        disabled = f"; disabled: {', '.join(sorted(self._disabled))}" if self._disabled else ""
        raise PluginNotFoundError(
            f"no plugin offers a {kind} with the scheme {scheme!r}; known: {known}{hint}"
            f"{'; not loaded: ' + left_out if left_out else ''}{disabled}"
        )

    def _open(self, kind: str, url: str | BackendURL) -> Any:
        parsed = BackendURL.parse(url)
        backend = self.backend(kind, parsed.scheme)
        expected = _KINDS[kind][1]
        options: object = structure(backend.options_class, parsed.options, what=f"{kind} {parsed}")
        try:
            opened = backend.open(parsed.rest, options)
        except ImportError as error:
            package = f"replog[{backend.extra}]" if backend.extra else f"the package that has {error.name!r}"
            raise PluginNotFoundError(f"{kind} {parsed}: {error}; pip install '{package}'") from error
        if isinstance(opened, expected):
            return opened
        if inspect.iscoroutine(opened):
            opened.close()
        plugin = self._offers[kind, parsed.scheme].plugin
        _refuse(
            plugin, f"its {kind} {parsed.scheme!r} opened a {type(opened).__name__}, which is no {expected.__name__}"
        )

    # -- observing ------------------------------------------------------------------------------------------------

    def observe(self, event: Event) -> None:
        """Tells every observer. One that raises is reported by a RuntimeWarning and left out from then on."""
        for name, observer in list(self._observers.items()):
            try:
                observer(event)
            except Exception as error:  # somebody else's code must not stop a log
                del self._observers[name]
                problem = f"plugin {name!r} failed to observe {event}, and is told nothing more: {error!r}"
                warnings.warn(problem, RuntimeWarning, stacklevel=2)

    # -- looking around -------------------------------------------------------------------------------------------

    def plugins(self) -> list[PluginInfo]:
        """The loaded plugins, in the order in which they were loaded."""
        return [
            PluginInfo(
                name,
                origin,
                tuple(f"{kind} {scheme}" for (kind, scheme), offer in self._offers.items() if offer.plugin == name),
                name in self._observers,
            )
            for name, origin in self._origins.items()
        ]

    # -- loading --------------------------------------------------------------------------------------------------

    def _register_builtins(self) -> None:
        for name, module, extra in _BUILTINS:
            if name in self._disabled:
                continue
            try:
                plugin = importlib.import_module(module)
            except ModuleNotFoundError as error:
                if not extra or (error.name or "").split(".")[0] == PROJECT_NAME:
                    raise  # a bug of ours, not a missing package
                self._missing[name] = f"{PROJECT_NAME}[{extra}]"
                continue
            self._register(name, plugin, "built in")

    def _register_installed(self) -> None:
        for found in entry_points(group=ENTRY_POINT_GROUP):
            if found.name in self._disabled:
                continue
            origin = f"{found.dist.name} {found.dist.version}" if found.dist else "an unknown package"
            try:
                plugin = found.load()
            except Exception as error:
                raise PluginConflictError(
                    f"plugin {found.name!r} of {origin} cannot be imported from {found.value!r}: {error!r}. "
                    f"Mend or uninstall it, or set {DISABLED_VARIABLE}={found.name}"
                ) from error
            self._register(found.name, plugin, origin)

    def _register(self, name: str, plugin: object, origin: str) -> None:
        if name in self._disabled:
            return
        if name in self._origins:
            raise PluginConflictError(
                f"two plugins are named {name!r}: one of {self._origins[name]}, one of {origin}. Uninstall or rename one"
            )
        try:
            registered = self._manager.register(plugin, name)
        except (pluggy.PluginValidationError, ValueError) as error:
            raise PluginConflictError(f"plugin {name!r} of {origin} is wrong: {error}") from error
        if registered is None:
            raise PluginConflictError(f"plugin {name!r} of {origin} is blocked")
        self._origins[name] = origin

    def _check_hooks(self) -> None:
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            name = self._manager.get_name(error.plugin)
            raise PluginConflictError(
                f"plugin {name!r} of {self._origins[str(name)]} implements a hook that does not exist: {error}. "
                f"There are: {', '.join(sorted(_hook_names()))}"
            ) from error
        for hook in _hook_names():
            for implementation in getattr(self._manager.hook, hook).get_hookimpls():
                function = inspect.unwrap(implementation.function)
                if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
                    _refuse(implementation.plugin_name, f"its {hook} is asynchronous: a hook is a plain function")
                if implementation.hookwrapper or implementation.wrapper:
                    _refuse(implementation.plugin_name, f"its {hook} is a wrapper: replog's hooks take none")

    def _collect_offers(self) -> None:
        for kind, (hook, _) in _KINDS.items():
            implementations = getattr(self._manager.hook, hook).get_hookimpls()
            for implementation in sorted(implementations, key=lambda each: list(self._origins).index(each.plugin_name)):
                for backend in self._offered(implementation.plugin_name, hook, implementation.function):
                    self._offer(kind, backend, implementation.plugin_name)
        for implementation in self._manager.hook.replog_observe.get_hookimpls():
            self._observers[implementation.plugin_name] = (
                implementation.function if implementation.argnames else _without_event(implementation.function)
            )

    def _offered(self, plugin: str, hook: str, function: Callable[[], object]) -> list[Backend[Any]]:
        try:
            offered = function()
        except Exception as error:
            raise PluginConflictError(
                f"plugin {plugin!r} of {self._origins[plugin]}: its {hook} raised {error!r}"
            ) from error
        if not isinstance(offered, list | tuple) or not all(isinstance(each, Backend) for each in offered):
            _refuse(plugin, f"its {hook} returned {offered!r}: it must be a list of Backend")
        return list(offered)

    def _offer(self, kind: str, backend: Backend[Any], plugin: str) -> None:
        if inspect.iscoroutinefunction(backend.open):
            _refuse(plugin, f"`open` of its {kind} {backend.scheme!r} is asynchronous: it must be a plain function")
        if not attrs.has(backend.options_class):
            _refuse(
                plugin, f"the options of its {kind} {backend.scheme!r} are no attrs class: {backend.options_class!r}"
            )
        other = self._offers.setdefault((kind, backend.scheme), _Offer(backend, plugin))
        if other.backend is not backend:
            raise PluginConflictError(
                f"the {kind} scheme {backend.scheme!r} is claimed by two plugins, {other.plugin!r} of "
                f"{self._origins[other.plugin]} and {plugin!r} of {self._origins[plugin]}: "
                f"uninstall one, or set {DISABLED_VARIABLE} to its name"
            )


def _refuse(plugin: str, fault: str) -> NoReturn:
    raise PluginConflictError(f"plugin {plugin!r}: {fault}. Mend it, or set {DISABLED_VARIABLE}={plugin}")


def _hook_names() -> list[str]:
    return [name for name, _ in inspect.getmembers(hookspecs, inspect.isfunction) if name.startswith("replog_")]


def _without_event(observer: Callable[[], object]) -> Callable[[Event], object]:
    return lambda _event: observer()
