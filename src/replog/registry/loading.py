"""Loading plugins: the built-in ones, the installed ones, those that a program gives; and checking their hooks."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import pluggy

from replog import hookspecs
from replog.errors import PluginConflictError
from replog.hookspecs import PROJECT_NAME
from replog.registry.importing import load
from replog.registry.plugin_errors import DISABLED_VARIABLE as DISABLED_VARIABLE
from replog.registry.plugin_errors import PluginFault, refused
from replog.runtime.installed import installed_plugins

# Name of the plugin, its module, and the extra of replog that it needs, if any.
_BUILTINS = (
    ("random-placement", "replog.placements.uniform", ""),
    ("weighted-placement", "replog.placements.weighted", ""),
    ("zones-placement", "replog.placements.zones", ""),
    ("memory-storage", "replog.backends.memory", ""),
    ("files-storage", "replog.backends.files", ""),
    ("lmdb-storage", "replog.backends.lmdb", ""),
    ("memory-transport", "replog.transports.memory", ""),
    ("tcp-transport", "replog.transports.tcp", ""),
    ("no-authentication", "replog.authentication.nothing", ""),
    ("secret-authentication", "replog.authentication.secret", ""),
    ("tls-authentication", "replog.authentication.tls", ""),
    ("directory-archive", "replog.archives.directory", ""),
    ("memory-metastore", "replog.metastores.memory", ""),
    ("lmdb-metastore", "replog.metastores.lmdb", ""),
    ("quorum-metastore", "replog.metastores.quorum", ""),
    ("zookeeper-metastore", "replog.metastores.zookeeper", "zookeeper"),
)


_BUILTIN_MODULES = frozenset(module for _, module, _ in _BUILTINS)


@cache
def _hooks_of(module: ModuleType) -> dict[str, Any]:
    looking = pluggy.PluginManager(PROJECT_NAME)
    found = {name: looking.parse_hookimpl_opts(module, name) for name in dir(module)}
    return {name: options for name, options in found.items() if options is not None}


class _Manager(pluggy.PluginManager):
    """Remembers which names of the built-in modules are hooks: pluggy looks at all of them again for each registry,
    which takes most of its time."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        if isinstance(plugin, ModuleType) and plugin.__name__ in _BUILTIN_MODULES:
            options = _hooks_of(plugin).get(name)
            return None if options is None else dict(options)
        return super().parse_hookimpl_opts(plugin, name)


class LoadedPlugins:
    """The plugins of one program, in the order in which they were loaded; wrong ones are left out and kept in `wrong`."""

    def __init__(self, disabled: Iterable[str], environment: Mapping[str, str]) -> None:
        from_environment = (name.strip() for name in environment.get(DISABLED_VARIABLE, "").split(","))
        self.disabled = {*disabled, *(name for name in from_environment if name)}
        self.found_disabled: set[str] = set()  # the disabled names that a plugin has
        self.origins: dict[str, str] = {}  # where each loaded plugin comes from
        self.missing: dict[str, str] = {}  # what to install for each built-in plugin that is not loaded
        self.wrong: list[tuple[PluginFault, PluginConflictError]] = []
        self._manager = _Manager(PROJECT_NAME)
        self._manager.add_hookspecs(hookspecs)

    # -- loading ------------------------------------------------------------------------------------------------------

    def load_builtins(self) -> None:
        """Loads the plugins that come with replog; one whose package is missing is in `missing`."""
        for name, module, extra in _BUILTINS:
            if self._is_disabled(name):
                continue
            try:
                plugin = importlib.import_module(module)
            except ModuleNotFoundError as error:
                if not extra or (error.name or "").split(".")[0] == PROJECT_NAME:
                    raise  # a bug of ours, not a missing package
                self.missing[name] = f"{PROJECT_NAME}[{extra}]"
                continue
            self.load(name, lambda plugin=plugin: plugin, "built in")  # type: ignore[misc]

    def load_installed(self) -> None:
        """Loads the plugins that installed packages name as entry points."""
        for found in installed_plugins():
            origin = f"{found.dist.name} {found.dist.version}" if found.dist else "an unknown package"
            self.load(found.name, lambda found=found: load(found), origin)  # type: ignore[misc]

    def load(self, name: str, make: Callable[[], object], origin: str) -> None:
        """Loads one plugin, unless it is disabled. `make` returns it, or raises `PluginConflictError`."""
        if self._is_disabled(name):
            return
        try:
            # Asked here, and not left to pluggy: its error does not say which two packages to choose from.
            if name in self.origins:
                raise PluginConflictError(
                    f"two plugins are named {name!r}: one of {self.origins[name]}, one of {origin}. Uninstall or rename one"
                )
            try:
                plugin = make()
            except PluginConflictError as error:
                # The cause is the plugin's own exception; the error between would only repeat this one's words.
                raise refused(name, origin, str(error)) from error.__cause__
            try:
                self._manager.register(plugin, name)
            except (pluggy.PluginValidationError, ValueError) as error:
                self._manager.unregister(name=name)  # some of its hooks may be registered
                raise refused(name, origin, f"it is wrong: {error}") from error
            self.origins[name] = origin
        except PluginConflictError as error:
            self.wrong.append((PluginFault(name, origin, str(error)), error))

    def leave_out(self, name: str, error: PluginConflictError) -> None:
        """Unloads a plugin that is wrong."""
        self.wrong.append((PluginFault(name, self.origins.pop(name), str(error)), error))
        self._manager.unregister(name=name)

    def _is_disabled(self, name: str) -> bool:
        if name in self.disabled:
            self.found_disabled.add(name)
        return name in self.disabled

    # -- hooks --------------------------------------------------------------------------------------------------------

    def implementations(self, name: str, hook: str) -> Iterator[Any]:
        """This plugin's implementations of this hook."""
        # Functions are called one by one, not by pluggy: it stops at the first one
        # that raises, and does not say whose it is.
        for each in getattr(self._manager.hook, hook).get_hookimpls():
            if each.plugin_name == name:
                yield each

    def check_unknown_hooks(self) -> None:
        """Leaves out every plugin with a hook that does not exist: most often one that is misspelt."""
        for name in list(self.origins):
            callers = self._manager.get_hookcallers(self._manager.get_plugin(name)) or []
            # Not pluggy's `check_pending`: it raises for the first unknown hook, and the other plugins stay unchecked.
            unknown = sorted(caller.name for caller in callers if not caller.has_spec())
            if unknown:
                likely = difflib.get_close_matches(unknown[0], _hook_names(), n=1)
                advice = f"Did you mean {likely[0]}? " if likely else ""
                known = ", ".join(_hook_names())
                problem = f"it implements a hook that does not exist: {unknown[0]}. {advice}There are: {known}"
                self.leave_out(name, self.refused(name, problem))

    def check_hooks(self, name: str) -> None:
        """Raises `PluginConflictError` unless each hook of this plugin is marked and is a plain function."""
        plugin = self._manager.get_plugin(name)
        marked = {caller.name for caller in self._manager.get_hookcallers(plugin) or []}
        for hook in _hook_names():
            if hook not in marked and callable(getattr(plugin, hook, None)):
                raise self.refused(name, f"its {hook} is not marked as a hook: put @hookimpl above it")
        if not marked:
            raise self.refused(name, f"it has no hook. There are: {', '.join(_hook_names())}, each marked @hookimpl")
        for hook in marked:
            for implementation in self.implementations(name, hook):
                # Below a decorator a coroutine function looks like a plain one, and its result would never be awaited.
                function = inspect.unwrap(implementation.function)
                if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
                    raise self.refused(name, f"its {hook} is asynchronous: a hook is a plain function")
                if implementation.hookwrapper or implementation.wrapper:
                    raise self.refused(name, f"its {hook} is a wrapper: replog's hooks take none")

    def refused(self, name: str, fault: str) -> PluginConflictError:
        """The error for a loaded plugin with this fault."""
        return refused(name, self.origins[name], fault)


@cache
def _hook_names() -> tuple[str, ...]:
    functions = inspect.getmembers(hookspecs, inspect.isfunction)
    return tuple(name for name, _ in functions if name.startswith("replog_"))
