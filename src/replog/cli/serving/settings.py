"""The configuration of a bookie's process: flags first, then the environment, then a file, then defaults.

Options are grouped in tables: `bookie`, `storage`, `tcp`, `metrics`, `logging`, and `client` for a bookie that repairs. An option
of the table `tcp` is in `[tcp]` in the file, is `REPLOG_TCP_...` in the environment, and is `--set tcp....` on the command line;
some have a flag of their own. All that is wrong with them is found before anything is done, and is reported in one error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import attrs

from replog.api import BookieConfig
from replog.api.reaching import listening_url
from replog.config import (
    BackendURL,
    BookieOptions,
    Checked,
    ClientOptions,
    FaultsError,
    option,
    read_toml,
    structure,
)
from replog.errors import ConfigError
from replog.metrics.requirements import check_installed, parse_listen
from replog.registry import Registry
from replog.runtime.host_ports import DEFAULT_PORT, parse_address
from replog.transports.tcp.options import TcpOptions
from replog.transports.tcp.unix import socket_path

Options = TypeVar("Options")

METASTORE_VARIABLE = "REPLOG_METASTORE"  # of all commands; REPLOG_BOOKIE_METASTORE comes before it
LISTEN_DEFAULT = (f"127.0.0.1:{DEFAULT_PORT}",)
PREFIX = "REPLOG_"
DEFAULT = "default"


def _one_of(*choices: str) -> Any:
    def check(value: Any) -> str | None:
        return None if value in choices else f"{value!r} must be one of {', '.join(choices)}"

    return check


def _address(value: Any) -> str | None:
    try:
        if value:
            parse_listen(value)
    except ConfigError as error:
        return str(error)
    return None


@attrs.frozen(kw_only=True)
class ProcessOptions(BookieOptions):
    """The table `bookie`: the options of any bookie, and where this one has its data and its metastore."""

    metastore: str | None = option(
        None, "URL of the metastore that the bookie announces itself in; with `peers`, only the options of theirs."
    )
    data: str = attrs.field(metadata={"doc": "Directory of the bookie's storage; one is made where there is none."})
    peers: tuple[str, ...] = option(
        (), "HOST:PORT of all processes that keep the metastore together, this one among them."
    )
    listen: tuple[str, ...] = option(
        LISTEN_DEFAULT, "HOST:PORT, unix:PATH, or the URL of a transport; port 0: any that is free."
    )


@attrs.frozen(kw_only=True)
class MetricsOptions(Checked):
    """The table `metrics`: where `/metrics` and `/health` are served."""

    listen: str = option("", "HOST:PORT of `/metrics` and `/health`; without one there are none.", _address)


@attrs.frozen(kw_only=True)
class LoggingOptions(Checked):
    """The table `logging`: the messages on standard error, and their form."""

    format: str = option("auto", "json, text, or auto: text on a terminal.", _one_of("auto", "json", "text"))
    level: str = option(
        "info", "From where on: debug, info, warning, error.", _one_of("debug", "info", "warning", "error")
    )


# The options of the table `storage` are those of the storage's plugin.
TABLES = ("bookie", "storage", "tcp", "metrics", "logging", "client")


@attrs.frozen
class Shown:
    """An option and its value, for people: without secrets. `source` is a file, a variable, a flag, or the default."""

    table: str
    option: str
    value: object
    source: str


@attrs.frozen
class Settings:
    """The whole configuration. `options.listen` are URLs, and `options.storage` includes its options."""

    options: ProcessOptions
    tcp: TcpOptions
    metrics: MetricsOptions
    logging: LoggingOptions
    client: ClientOptions
    shown: tuple[Shown, ...]
    after_restore: bool = False

    @property
    def config(self) -> BookieConfig:
        """The configuration for `serve_bookie`."""
        return BookieConfig(
            directory=self.options.data,
            metastore=self.options.metastore,
            peers=self.options.peers,
            options=self.options,
            client=self.client,
            after_restore=self.after_restore,
        )


class Layers:
    """Options by table, with the last given value of each and its source. `faults` are the unreadable options."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.values: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
        self.sources: dict[str, dict[str, str]] = {table: {} for table in TABLES}

    def give(self, table: str, name: str, value: Any, source: str) -> None:
        """Set an option, in place of an earlier value."""
        self.values[table][name] = value
        self.sources[table][name] = source

    def read_file(self, path: str) -> None:
        """Read a TOML file. It may have the tables of other commands."""
        with self._noting():
            for table, found in read_toml(Path(path)).items():
                if table not in TABLES or not isinstance(found, dict):
                    self.faults.append(f"{path}: {table!r} is not a table; the tables are {', '.join(TABLES)}")
                    continue
                for name, value in found.items():
                    self.give(table, name, value, path)

    def read_environment(self, environment: Mapping[str, str]) -> None:
        """Read all variables with the prefixes of the tables."""
        # First, so that REPLOG_BOOKIE_METASTORE, which is read below, comes over it.
        if METASTORE_VARIABLE in environment:
            self.give("bookie", "metastore", environment[METASTORE_VARIABLE], METASTORE_VARIABLE)
        for table in TABLES:
            prefix = f"{PREFIX}{table.upper()}_"
            for name in sorted(environment):
                if name.startswith(prefix):
                    self.give(table, name[len(prefix) :].lower(), environment[name], name)

    def read_assignments(self, assignments: Sequence[str]) -> None:
        """Read the values of `--set`: TABLE.OPTION=VALUE."""
        for each in assignments:
            place, has_value, value = each.partition("=")
            table, _, name = place.strip().partition(".")
            if not has_value or table not in TABLES or not name:
                known = ", ".join(TABLES)
                self.faults.append(f"--set {place}: must be TABLE.OPTION=VALUE, with one of the tables {known}")
            else:
                self.give(table, name, value.strip(), f"--set {place.strip()}")

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            self.faults.append(str(error))


def settle(layers: Layers, registry: Registry) -> Settings:
    """The effective options of all layers. Raises `ConfigError` with every fault."""
    return _Settling(layers, registry).settle()


class _Settling:
    def __init__(self, layers: Layers, registry: Registry) -> None:
        self._layers = layers
        self._registry = registry
        self._faults = list(layers.faults)

    def settle(self) -> Settings:
        options = self._structure("bookie", ProcessOptions)
        tcp = self._structure("tcp", TcpOptions)
        metrics = self._structure("metrics", MetricsOptions)
        logging = self._structure("logging", LoggingOptions)
        client = self._structure("client", ClientOptions)
        if tcp is not None:
            with self._noting("tcp"):
                tcp.is_bookie_tls  # noqa: B018 - raises if it can't be
        if metrics is not None and metrics.listen:
            with self._noting("metrics.listen"):
                check_installed()
        storage = self._storage()
        listen = self._ways()
        for name, kind in (("metastore", "metastore"), ("authentication", "authenticator")):
            self._check_url(kind, self._layers.values["bookie"].get(name), name)
        if options is None or tcp is None or metrics is None or logging is None or client is None or self._faults:
            raise FaultsError("configuration", self._faults)
        shown = tuple(
            each
            for table, found in (("bookie", options), ("tcp", tcp), ("metrics", metrics), ("logging", logging))
            for each in self._show(table, attrs.asdict(found, recurse=False))
        )
        # Its many options are for a bookie that repairs: only those that were given are worth a line.
        of_client = attrs.asdict(client, recurse=False)
        given = {name: value for name, value in of_client.items() if name in self._layers.sources["client"]}
        shown += tuple(self._show("client", given))
        # The secrets come back only here, after everything that is shown was made without them.
        options = attrs.evolve(options, storage=storage.with_secrets(), listen=listen)
        return Settings(options, tcp, metrics, logging, client, (*shown, *self._show("storage", storage.options)))

    def _structure(self, table: str, options_class: type[Options]) -> Options | None:
        values, sources = self._layers.values[table], self._layers.sources[table]
        names = [field.name for field in attrs.fields(cast("Any", options_class))]
        # Faults are collected, and not raised one by one: a configuration is corrected in one go.
        self._faults += [
            f"{table}.{name} (from {sources[name]}): no such option; there are {', '.join(names)}"
            for name in values
            if name not in names
        ]
        try:
            known = {name: value for name, value in values.items() if name in names}
            return structure(options_class, known, what=table, sources=sources)
        except FaultsError as error:
            self._faults += [f"{table}.{_with_hint(table, fault)}" for fault in error.faults]
        return None

    def _storage(self) -> BackendURL:
        """The URL with the options of the table `storage`, which its plugin checks here."""
        text = self._layers.values["bookie"].get("storage", "files")
        url = BackendURL("files")
        with self._noting("bookie.storage"):
            url = BackendURL.parse(str(text))
            if url.rest:
                raise ConfigError(f"{url} names a place: that is for --data, or the option `data`")
            url = attrs.evolve(url, options={**url.options, **_as_texts(self._layers.values["storage"])})
            backend = self._registry.backend("storage", url.scheme)
            try:
                structure(backend.options_class, url.options, what=url.scheme, sources=self._layers.sources["storage"])
            except FaultsError as error:
                self._faults += [f"storage.{fault}" for fault in error.faults]
        return url

    def _ways(self) -> tuple[str, ...]:
        """The URLs of where to listen: TCP's get the options of the table `tcp`."""
        given = self._layers.values["bookie"].get("listen", LISTEN_DEFAULT)
        texts = [each.strip() for each in given.split(",")] if isinstance(given, str) else given
        ways: list[str] = []
        if not isinstance(texts, list | tuple) or not all(isinstance(each, str) for each in texts):
            return ()  # the check of types reports the fault
        for text in filter(None, texts):
            with self._noting("bookie.listen"):
                url = listening_url(text, self._registry)
                has_options = bool(url.options)
                if url.scheme == "tcp":
                    parse_address(url.rest)
                    url = attrs.evolve(url, options={**_as_texts(self._layers.values["tcp"]), **url.options})
                elif url.scheme == "unix":
                    socket_path(url.rest)
                if has_options or url.scheme != "tcp":  # otherwise the check of the table says it better
                    self._check_url("transport", url.with_secrets(), "listen")
                ways.append(url.with_secrets())
        if not any(texts):
            self._faults.append("bookie.listen: must name an address at least")
        return tuple(ways)

    def _check_url(self, kind: str, text: object, name: str) -> None:
        if isinstance(text, str):  # otherwise it is not given, or the check of types reports the fault
            with self._noting(f"bookie.{name}"):
                url = BackendURL.parse(text)
                structure(self._registry.backend(kind, url.scheme).options_class, url.options, what=str(url))

    @contextmanager
    def _noting(self, place: str) -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            self._faults.append(f"{place}: {error}")

    def _show(self, table: str, values: Mapping[str, object]) -> Iterator[Shown]:
        for name, value in sorted(values.items()):
            if name in ("metastore", "storage", "authentication"):
                value = _without_secrets(str(value))
            elif isinstance(value, tuple):
                value = [_without_secrets(each) for each in value]
            yield Shown(table, name, value, self._layers.sources[table].get(name, DEFAULT))


def _with_hint(table: str, fault: str) -> str:
    name, _, what = fault.partition(": ")
    if what != "it must be given":
        return fault
    return f"{name}: must be given: --{name}, or {PREFIX}{table.upper()}_{name.upper()}, or {name} in [{table}]"


def _as_texts(values: Mapping[str, Any]) -> dict[str, str]:
    # As in a URL: TOML's true is Python's True, and a plugin's option expects `true`.
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}


def _without_secrets(text: str) -> str:
    """As it is, unless a URL contains a secret."""
    url = BackendURL.parse(text) if "?" in text or "@" in text else None
    return text if url is None or "***" not in str(url) else str(url)
