"""Which plugins there are, what they offer, and opening what a URL names.

Rules: there is no registry until somebody makes one, and importing this module imports no plugin. The built-ins register
through the same hooks as a stranger's plugin. Whatever is wrong with a plugin is an error that names it, at once: a
misspelt, unmarked or asynchronous hook, a scheme that two claim, a module that cannot be imported. All that is wrong is in
one error; who only looks around (`is_strict=False`) gets what is right, and is told of the rest.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires
from importlib.metadata import version as version_of
from typing import Any

import attrs
import pluggy

from replog import hookspecs
from replog.abc import Authenticator, Metastore, PlacementPolicy, Storage, Transport
from replog.config import BackendURL, structure
from replog.errors import ConfigError, PluginConflictError, PluginNotFoundError, ReplogError
from replog.hookspecs import PROJECT_NAME, Backend, Event

DISABLED_VARIABLE = "REPLOG_PLUGINS_DISABLED"
ENTRY_POINT_GROUP = "replog"

# Name of the plugin, its module, and the extra of replog that it needs, if any.
_BUILTINS = (
    ("random-placement", "replog.placements.uniform", ""),
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
    """One loaded plugin: its name, where it comes from, what it offers (as "metastore lmdb"), whether it observes, and what
    has to be installed before all of that works (as "replog[zookeeper]")."""

    name: str
    origin: str
    offers: tuple[str, ...]
    observes: bool
    needs: tuple[str, ...] = ()


@attrs.frozen
class PluginFault:
    """One plugin that is wrong: its name, where it comes from, and in `problem` a sentence with both, what is wrong, and what
    to do."""

    name: str
    origin: str
    problem: str


@attrs.frozen
class _Offer:
    backend: Backend[Any]
    plugin: str


class Registry:
    """The plugins of one program: the built-ins, then those installed with an entry point in the group `replog`, then
    `plugins` given by name. Names in `disabled`, and in the environment's `REPLOG_PLUGINS_DISABLED` (with commas), are
    left out. Raises `PluginConflictError`, which names them all, if any are wrong or contradict each other; nothing is then
    loaded. With `is_strict=False` these are left out, too, and `faults` tells of them; of two that contradict each other that
    is the one that comes later.
    """

    def __init__(
        self,
        plugins: Mapping[str, object] | None = None,
        *,
        load_installed: bool = True,
        disabled: Iterable[str] = (),
        environment: Mapping[str, str] = os.environ,
        is_strict: bool = True,
    ) -> None:
        from_environment = (name.strip() for name in environment.get(DISABLED_VARIABLE, "").split(","))
        self._disabled = {*disabled, *(name for name in from_environment if name)}
        self._manager = pluggy.PluginManager(PROJECT_NAME)
        self._manager.add_hookspecs(hookspecs)
        self._origins: dict[str, str] = {}
        self._missing: dict[str, str] = {}  # plugin left out -> what to install
        self._wrong: list[tuple[PluginFault, PluginConflictError]] = []
        self._found_disabled: set[str] = set()
        self._offers: dict[tuple[str, str], _Offer] = {}
        self._observers: dict[str, Callable[[Event], object]] = {}
        self._register_builtins()
        if load_installed:
            self._register_installed()
        for name, plugin in (plugins or {}).items():
            self._register(name, lambda plugin=plugin: plugin, "given by the program")  # type: ignore[misc]
        self._check_unknown_hooks()
        for name, origin in list(self._origins.items()):
            try:
                self._check_hooks(name)
                self._collect_offers(name)
            except PluginConflictError as error:
                self._leave_out(name, origin, error)
        if is_strict and self._wrong:
            self._raise_wrong()

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
        known = sorted(name for of_kind, name in self._offers if of_kind == kind)
        elsewhere = {name: remedy for (of_kind, name), remedy in _ELSEWHERE.items() if of_kind == kind}
        likely = difflib.get_close_matches(scheme, [*known, *(each for each in elsewhere if each != scheme)], n=1)
        hints = []
        if remedy := elsewhere.get(scheme):
            hints.append(f"for {scheme}: pip install '{remedy}'")
        elif likely:
            hints.append(f"did you mean {likely[0]!r}?")
        if self._missing:
            left_out = "; ".join(
                f"{name} needs: pip install '{extra}'" for name, extra in sorted(self._missing.items())
            )
            hints.append(f"not loaded: {left_out}")
        if self._wrong:
            hints.append(f"left out, since they are wrong: {', '.join(fault.name for fault, _ in self._wrong)}")
        if self._disabled:
            hints.append(f"disabled: {', '.join(sorted(self._disabled))}")
        problem = f"no plugin offers a {kind} with the scheme {scheme!r}; known: {', '.join(known) or 'none'}"
        raise PluginNotFoundError("; ".join([problem, *hints]))

    def _open(self, kind: str, url: str | BackendURL) -> Any:
        parsed = BackendURL.parse(url)
        backend = self.backend(kind, parsed.scheme)
        expected = _KINDS[kind][1]
        options: object = structure(backend.options_class, parsed.options, what=f"{kind} {parsed}")
        plugin = self._offers[kind, parsed.scheme].plugin
        try:
            opened = backend.open(parsed.rest, options)
        except ReplogError:
            raise
        except ImportError as error:
            package = f"replog[{backend.extra}]" if backend.extra else f"the package that has {error.name!r}"
            raise PluginNotFoundError(f"{kind} {parsed}: {error}; pip install '{package}'") from error
        except Exception as error:
            raise self._refused(plugin, f"its {kind} {parsed.scheme!r} cannot be opened: {error!r}") from error
        if isinstance(opened, expected):
            return opened
        if inspect.iscoroutine(opened):
            opened.close()
        problem = f"its {kind} {parsed.scheme!r} opened a {type(opened).__name__}, which is no {expected.__name__}"
        raise self._refused(plugin, problem)

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
                self._needs(name),
            )
            for name, origin in self._origins.items()
        ]

    def faults(self) -> list[PluginFault]:
        """The plugins that are wrong, and were left out for that. [] unless `is_strict=False`."""
        return [fault for fault, _ in self._wrong]

    def missing(self) -> dict[str, str]:
        """The built-in plugins that are not loaded since a package is missing, and what to install for them."""
        return dict(self._missing)

    def disabled(self) -> dict[str, bool]:
        """The names that were to be left out, and whether there is a plugin of that name at all."""
        return {name: name in self._found_disabled for name in sorted(self._disabled)}

    def _needs(self, plugin: str) -> tuple[str, ...]:
        extras = {offer.backend.extra for offer in self._offers.values() if offer.plugin == plugin}
        return tuple(f"{PROJECT_NAME}[{extra}]" for extra in sorted(extras) if extra and not _is_installed(extra))

    # -- loading --------------------------------------------------------------------------------------------------

    def _register_builtins(self) -> None:
        for name, module, extra in _BUILTINS:
            if self._is_disabled(name):
                continue
            try:
                plugin = importlib.import_module(module)
            except ModuleNotFoundError as error:
                if not extra or (error.name or "").split(".")[0] == PROJECT_NAME:
                    raise  # a bug of ours, not a missing package
                self._missing[name] = f"{PROJECT_NAME}[{extra}]"
                continue
            self._register(name, lambda plugin=plugin: plugin, "built in")  # type: ignore[misc]

    def _register_installed(self) -> None:
        for found in entry_points(group=ENTRY_POINT_GROUP):
            origin = f"{found.dist.name} {found.dist.version}" if found.dist else "an unknown package"
            self._register(found.name, lambda found=found: _load(found), origin)  # type: ignore[misc]

    def _is_disabled(self, name: str) -> bool:
        if name in self._disabled:
            self._found_disabled.add(name)
        return name in self._disabled

    def _register(self, name: str, load: Callable[[], object], origin: str) -> None:
        if self._is_disabled(name):
            return
        try:
            if name in self._origins:
                raise PluginConflictError(
                    f"two plugins are named {name!r}: one of {self._origins[name]}, one of {origin}. Uninstall or rename one"
                )
            try:
                plugin = load()
            except PluginConflictError as error:
                raise PluginConflictError(_sentence(name, origin, str(error))) from error.__cause__
            try:
                self._manager.register(plugin, name)
            except (pluggy.PluginValidationError, ValueError) as error:
                self._manager.unregister(name=name)  # some of its hooks may be there
                raise PluginConflictError(_sentence(name, origin, f"it is wrong: {error}")) from error
            self._origins[name] = origin
        except PluginConflictError as error:
            self._wrong.append((PluginFault(name, origin, str(error)), error))

    def _leave_out(self, name: str, origin: str, error: PluginConflictError) -> None:
        self._wrong.append((PluginFault(name, origin, str(error)), error))
        self._manager.unregister(name=name)
        del self._origins[name]
        self._offers = {key: offer for key, offer in self._offers.items() if offer.plugin != name}

    def _raise_wrong(self) -> None:
        if len(self._wrong) == 1:
            raise self._wrong[0][1]
        problems = [fault.problem for fault, _ in self._wrong]
        raise PluginConflictError("\n  - ".join([f"{len(problems)} plugins are wrong", *problems])) from self._wrong[0][
            1
        ]

    def _check_unknown_hooks(self) -> None:
        """Leaves out every plugin with a hook that does not exist: most often one that is misspelt."""
        for name, origin in list(self._origins.items()):
            callers = self._manager.get_hookcallers(self._manager.get_plugin(name)) or []
            for hook in sorted(caller.name for caller in callers if not caller.has_spec()):
                likely = difflib.get_close_matches(hook, _hook_names(), n=1)
                advice = f"Did you mean {likely[0]}? " if likely else ""
                problem = (
                    f"it implements a hook that does not exist: {hook}. {advice}There are: {', '.join(_hook_names())}"
                )
                self._leave_out(name, origin, self._refused(name, problem))
                break

    def _check_hooks(self, name: str) -> None:
        plugin = self._manager.get_plugin(name)
        marked = {caller.name: caller for caller in self._manager.get_hookcallers(plugin) or []}
        for hook in _hook_names():
            if hook not in marked and callable(getattr(plugin, hook, None)):
                raise self._refused(name, f"its {hook} is not marked as a hook: put @hookimpl above it")
        if not marked:
            raise self._refused(name, f"it has no hook. There are: {', '.join(_hook_names())}, each marked @hookimpl")
        for hook, caller in marked.items():
            for implementation in caller.get_hookimpls():
                if implementation.plugin_name != name:
                    continue
                function = inspect.unwrap(implementation.function)
                if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
                    raise self._refused(name, f"its {hook} is asynchronous: a hook is a plain function")
                if implementation.hookwrapper or implementation.wrapper:
                    raise self._refused(name, f"its {hook} is a wrapper: replog's hooks take none")

    def _collect_offers(self, name: str) -> None:
        for kind, (hook, _) in _KINDS.items():
            for implementation in getattr(self._manager.hook, hook).get_hookimpls():
                if implementation.plugin_name == name:
                    for backend in self._offered(name, hook, implementation.function):
                        self._offer(kind, backend, name)
        for implementation in self._manager.hook.replog_observe.get_hookimpls():
            if implementation.plugin_name == name:
                function = implementation.function
                self._observers[name] = function if implementation.argnames else _without_event(function)

    def _offered(self, plugin: str, hook: str, function: Callable[[], object]) -> list[Backend[Any]]:
        try:
            offered = function()
        except Exception as error:
            raise self._refused(plugin, f"its {hook} raised {error!r}") from error
        if not isinstance(offered, list | tuple) or not all(isinstance(each, Backend) for each in offered):
            raise self._refused(plugin, f"its {hook} returned {offered!r}: it must be a list of Backend")
        return list(offered)

    def _offer(self, kind: str, backend: Backend[Any], plugin: str) -> None:
        what = f"its {kind} {backend.scheme!r}"
        if not _is_scheme(backend.scheme):
            raise self._refused(
                plugin, f"{what}: that is no scheme: lower-case letters, then also digits and '+', '.', '-'"
            )
        if not callable(backend.open) or inspect.iscoroutinefunction(backend.open):
            is_what = "is asynchronous" if callable(backend.open) else f"is {backend.open!r}"
            raise self._refused(plugin, f"`open` of {what} {is_what}: it must be a plain function")
        if not attrs.has(backend.options_class):
            raise self._refused(plugin, f"the options of {what} are no attrs class: {backend.options_class!r}")
        other = self._offers.setdefault((kind, backend.scheme), _Offer(backend, plugin))
        if other.backend is not backend:
            raise PluginConflictError(
                f"the {kind} scheme {backend.scheme!r} is claimed by two plugins, {other.plugin!r} of "
                f"{self._origins[other.plugin]} and {plugin!r} of {self._origins[plugin]}: "
                f"uninstall one, or set {DISABLED_VARIABLE} to its name"
            )

    def _refused(self, plugin: str, fault: str) -> PluginConflictError:
        return PluginConflictError(_sentence(plugin, self._origins[plugin], fault))


def _sentence(plugin: str, origin: str, fault: str) -> str:
    return f"plugin {plugin!r} of {origin}: {fault}. Mend or uninstall it, or set {DISABLED_VARIABLE}={plugin}"


def _load(found: EntryPoint) -> object:
    """Raises `PluginConflictError` with what is wrong, and where there is advice, with that."""
    try:
        return found.load()
    except (Exception, SystemExit) as error:
        asked_for = [each for each in (found.dist.requires or [] if found.dist else []) if "extra ==" not in each]
        module = (error.name or "") if isinstance(error, ImportError) else ""
        advice = ""
        if isinstance(error, ModuleNotFoundError) and module and f"{found.module}.".startswith(f"{module}."):
            advice = ". It is not wholly installed: install it again"
        elif module.split(".")[0] == PROJECT_NAME or isinstance(error, TypeError):
            advice = f". It may be made for another replog than {_version()}{_asking(asked_for)}"
        elif isinstance(error, ModuleNotFoundError) and module:
            advice = f". Install what has the module {module!r}{_asking(asked_for)}"
        raise PluginConflictError(f"it cannot be imported from {found.value!r}: {error!r}{advice}") from error


def _asking(requirements: list[str]) -> str:
    return f" (it asks for {', '.join(requirements)})" if requirements else ""


def _version() -> str:
    try:
        return version_of(PROJECT_NAME)
    except PackageNotFoundError:
        return "this one"


def _is_installed(extra: str) -> bool:
    """Whether the packages are there that this extra of replog brings."""
    try:
        for requirement in requires(PROJECT_NAME) or []:
            name, _, marker = requirement.partition(";")
            if marker.replace(" ", "").replace('"', "'") == f"extra=='{extra}'":
                version_of(re.split(r"[^\w.-]", name.strip())[0])
    except PackageNotFoundError:
        return False
    return True


def _is_scheme(text: object) -> bool:
    try:
        return isinstance(text, str) and BackendURL.parse(text) == BackendURL(text)
    except ConfigError:
        return False


def _hook_names() -> list[str]:
    return [name for name, _ in inspect.getmembers(hookspecs, inspect.isfunction) if name.startswith("replog_")]


def _without_event(observer: Callable[[], object]) -> Callable[[Event], object]:
    return lambda _event: observer()
