"""The registry of one program: opens what a URL names, and tells observers what happens."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import attrs

from replog.abc import (
    Archive,
    Authenticator,
    BackupPlace,
    Metastore,
    MetastoreOverTransports,
    PlacementPolicy,
    Storage,
    Transport,
)
from replog.config import BackendURL, structure
from replog.errors import PluginConflictError, PluginNotFoundError, ReplogError
from replog.hookspecs import PROJECT_NAME, Backend, BatchConfirmed, Event
from replog.registry.importing import is_installed
from replog.registry.labels import Labels
from replog.registry.loading import LoadedPlugins
from replog.registry.offers import KINDS, Offers
from replog.registry.plugin_errors import PluginFault, raise_all


@attrs.frozen
class PluginInfo:
    """A loaded plugin: its name, where it comes from, what it offers (as "metastore lmdb"), whether it observes, and what must be
    installed before all of that works (as "replog[zookeeper]")."""

    name: str
    origin: str
    offers: tuple[str, ...]
    observes: bool
    needs: tuple[str, ...] = ()


class Registry:
    """The plugins of one program.

    It loads the built-in plugins, then the installed ones (entry points in the group `replog`), then `plugins`, given by name. It
    leaves out the names in `disabled`, and in the environment's `REPLOG_PLUGINS_DISABLED` (separated by commas). Raises
    `PluginConflictError`, naming every plugin that is wrong or contradicts another: then nothing is loaded. With
    `is_strict=False` these are left out instead, and `faults` returns them; of two that contradict each other, the later one.
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
        self._plugins = LoadedPlugins(disabled, environment)
        self._offers = Offers(self._plugins)
        self._labels = Labels(self._plugins)
        self._observers: dict[str, Callable[[Any], object]] = {}
        self._batch_observers: dict[str, Callable[[Any], object]] = {}
        self._plugins.load_builtins()
        if load_installed:
            self._plugins.load_installed()
        for name, plugin in (plugins or {}).items():
            self._plugins.load(name, lambda plugin=plugin: plugin, "given by the program")  # type: ignore[misc]
        self._plugins.check_unknown_hooks()
        # Each plugin is either whole or left out: a plugin with a good storage and a misspelt hook is not half loaded.
        for name in list(self._plugins.origins):
            try:
                self._plugins.check_hooks(name)
                self._offers.collect(name)
                self._collect_observer(name)
            except PluginConflictError as error:
                self._plugins.leave_out(name, error)
        if is_strict and self._plugins.wrong:
            raise_all(self._plugins.wrong)

    def _collect_observer(self, name: str) -> None:
        hooks = {"replog_observe": self._observers, "replog_observe_batches": self._batch_observers}
        for hook, observers in hooks.items():
            for implementation in self._plugins.implementations(name, hook):
                function = implementation.function
                # As in pluggy, an observer may leave out the argument.
                observers[name] = function if implementation.argnames else _without_event(function)

    # -- opening ------------------------------------------------------------------------------------------------------

    def open_storage(self, url: str | BackendURL) -> Storage:
        """Opens a bookie's storage. May block: call it in a worker thread. Raises `ConfigError`, `StorageError`."""
        opened: Storage = self._open("storage", url)
        return opened

    def open_transport(self, url: str | BackendURL) -> Transport:
        """Makes a transport. Raises `ConfigError`."""
        opened: Transport = self._open("transport", url)
        return opened

    def open_metastore(
        self,
        url: str | BackendURL,
        open_transport: Callable[[str], Transport] | None = None,
        authenticator: Authenticator | None = None,
    ) -> Metastore:
        """Makes a metastore, which connects at its first call. One whose members are reached as bookies are uses these
        transports, by their schemes, and this authenticator. Raises `ConfigError`."""
        opened: Metastore = self._open("metastore", url)
        if isinstance(opened, MetastoreOverTransports):
            opened.use(open_transport or self.open_transport, authenticator)
        return opened

    def open_placement(self, url: str | BackendURL) -> PlacementPolicy:
        """Makes a placement policy. Raises `ConfigError`."""
        opened: PlacementPolicy = self._open("placement", url)
        return opened

    def open_authenticator(self, url: str | BackendURL) -> Authenticator:
        """Makes an authenticator; may read files. Raises `ConfigError`."""
        opened: Authenticator = self._open("authenticator", url)
        return opened

    def open_backup_place(self, url: str | BackendURL) -> BackupPlace:
        """Makes a place for back-ups, which connects at its first call. Raises `ConfigError`."""
        opened: BackupPlace = self._open("backup", url)
        return opened

    def open_archive(self, url: str | BackendURL) -> Archive:
        """Makes an archive, which connects at its first call. Raises `ConfigError`."""
        opened: Archive = self._open("archive", url)
        return opened

    def backend(self, kind: str, scheme: str) -> Backend[Any]:
        """The backend of this kind ("storage", "transport", "metastore", "placement", "authenticator", "backup", "archive") and
        scheme.

        Raises `PluginNotFoundError`, listing the known schemes and what to install for others.
        """
        return self._offers.find(kind, scheme).backend

    def _open(self, kind: str, url: str | BackendURL) -> Any:
        parsed = BackendURL.parse(url)
        offer = self._offers.find(kind, parsed.scheme)
        backend, expected = offer.backend, KINDS[kind][1]
        options: object = structure(backend.options_class, parsed.options, what=f"{kind} {parsed}")
        refused = self._plugins.refused
        try:
            opened = backend.open(parsed.rest, options)
        # The backend's own verdict, such as a storage in use. Only what else it raises is a fault of the plugin.
        except ReplogError:
            raise
        except ImportError as error:
            package = f"replog[{backend.extra}]" if backend.extra else f"the package that has {error.name!r}"
            raise PluginNotFoundError(f"{kind} {parsed}: {error}; pip install '{package}'") from error
        except Exception as error:
            problem = f"its {kind} {parsed.scheme!r} cannot be opened: {error!r}"
            raise refused(offer.plugin, problem) from error
        if isinstance(opened, expected):
            return opened
        # Otherwise Python also warns that it was never awaited, at some later time and far from the cause.
        if inspect.iscoroutine(opened):
            opened.close()
        problem = f"its {kind} {parsed.scheme!r} opened a {type(opened).__name__}, which is not a {expected.__name__}"
        raise refused(offer.plugin, problem)

    def bookie_labels(self) -> dict[str, str]:
        """The labels that plugins give to bookies of this program. May block: call it in a worker thread.

        Raises `PluginConflictError` if a plugin fails, or two give different values for one label."""
        return self._labels.ask()

    @property
    def gives_labels(self) -> bool:
        """True if a plugin gives labels."""
        return self._labels.is_given

    # -- observing ----------------------------------------------------------------------------------------------------

    def observe(self, event: Event) -> None:
        """Tells every observer. An observer that raises gives a RuntimeWarning and is left out from then on."""
        self._tell(self._observers, event)

    @property
    def batch_observer(self) -> Callable[[BatchConfirmed], None] | None:
        """The observers of confirmed batches as one function, like `observe`; None if there are none."""
        return partial(self._tell, self._batch_observers) if self._batch_observers else None

    def _tell(self, observers: dict[str, Callable[[Any], object]], event: Event | BatchConfirmed) -> None:
        for name, observer in list(observers.items()):
            try:
                observer(event)
            except Exception as error:  # other people's code must not stop a log
                del observers[name]
                problem = f"plugin {name!r} failed to observe {event}, and gets no more events: {error!r}"
                warnings.warn(problem, RuntimeWarning, stacklevel=3)

    # -- looking around -----------------------------------------------------------------------------------------------

    def plugins(self) -> list[PluginInfo]:
        """The loaded plugins, in the order in which they were loaded."""
        return [
            PluginInfo(
                name,
                origin,
                tuple(f"{kind} {scheme}" for kind, scheme in self._offers.by(name)),
                name in self._observers or name in self._batch_observers,
                self._needs(name),
            )
            for name, origin in self._plugins.origins.items()
        ]

    def faults(self) -> list[PluginFault]:
        """The plugins that were left out because they are wrong. [] unless `is_strict=False`."""
        return [fault for fault, _ in self._plugins.wrong]

    def missing(self) -> dict[str, str]:
        """The built-in plugins that are not loaded because a package is missing, and what to install for each."""
        return dict(self._plugins.missing)

    def disabled(self) -> dict[str, bool]:
        """The disabled names, and whether a plugin of that name exists."""
        return {name: name in self._plugins.found_disabled for name in sorted(self._plugins.disabled)}

    def _needs(self, plugin: str) -> tuple[str, ...]:
        extras = {backend.extra for backend in self._offers.by(plugin).values()}
        return tuple(f"{PROJECT_NAME}[{extra}]" for extra in sorted(extras) if extra and not is_installed(extra))


def _without_event(observer: Callable[[], object]) -> Callable[[Event], object]:
    return lambda _event: observer()
