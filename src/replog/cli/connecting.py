"""From a command to a client: the options of every command that works on data, signals, and one trio run.

Such a command looks like this; the options of `Connection` are added to its own:

    @app.command()
    @takes_connection
    def show(connection: Connection, name: Annotated[str, typer.Argument()]) -> None:
        run(_show, connection, name)

    async def _show(connection: Connection, name: str) -> None:
        async with client_from(connection) as client:
            ...

Commands only use what exists: they make no directory and no metastore unless `creates` says so.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Concatenate, ParamSpec, TypeVar

import attrs
import trio
import typer

import replog
from replog.api.bookies import confirm_embedded_metastore
from replog.backends.files.directory import FORMAT_NAME as FILES_FORMAT_NAME
from replog.backends.inspection.read_only import format_name
from replog.cli.ending import InterruptedBySignal
from replog.cli.inspect.common import LMDB_FORMAT_NAME
from replog.config import BackendURL, ClientOptions, ledger_password, load
from replog.errors import ConfigError
from replog.protocol.quorum import Quorum
from replog.runtime.disk_errors import exists, is_directory, names_like
from replog.runtime.nursery import open_service_nursery

Own = ParamSpec("Own")
Item = TypeVar("Item")
Result = TypeVar("Result")

_PANEL = "Which data, and how"
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AT_ONCE = 16  # questions about ledgers


# -- options ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Connection:
    """The data that a command works on, and how to reach it: the options that `takes_connection` added."""

    metastore: str | None = None
    directories: tuple[str, ...] = ()
    storage: str | None = None
    config: Path | None = None
    options: tuple[str, ...] = ()
    password_file: Path | None = None

    def client_options(self) -> ClientOptions:
        """The options of the client: `--option` first, then `REPLOG_CLIENT_...`, then the table `client` of the file.

        Raises `ConfigError` with all faults."""
        pairs = [each.partition("=") for each in self.options]
        for name, equals, _ in pairs:
            if not equals:
                raise ConfigError(f"--option {name}: it is written name=value, as in --option read_timeout_s=2")
        return load(
            ClientOptions,
            toml_path=self.config,
            table="client",
            environment=os.environ,
            prefix="REPLOG_CLIENT_",
            overrides={name: value for name, _, value in pairs},
        )

    def password(self) -> bytes:
        """The password from `--password-file` or `REPLOG_PASSWORD`, without the line end; b"" if there is neither."""
        return ledger_password(self.password_file, "--password-file")


def _connection(
    metastore: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The metastore that the bookies announce themselves in. Environment: REPLOG_METASTORE.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    directories: Annotated[
        list[str] | None,
        typer.Option(
            "--dir",
            metavar="DIRECTORY",
            help="Work on an embedded log, as replog.embed(DIRECTORY) does, while no other process has it open. "
            "Once for each disk.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="With --dir: its storage, if files or lmdb is not specific enough.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="REPLOG_CONFIG",
            help="A TOML file with options in its table client.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="NAME=VALUE",
            help="An option of the client, over the file and REPLOG_CLIENT_NAME. As often as need be.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The ledgers' password: what this file says. Environment: the password itself in REPLOG_PASSWORD.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
) -> Connection:
    return Connection(metastore, tuple(directories or ()), storage, config, tuple(options or ()), password_file)


def takes_connection(command: Callable[Concatenate[Connection, Own], None]) -> Callable[..., None]:
    """Replace a command's first parameter, its `Connection`, with the options that make one."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    shared = list(inspect.signature(_connection, eval_str=True).parameters.values())

    @functools.wraps(command)
    def with_options(**values: object) -> None:
        of_connection = {each.name: values.pop(each.name) for each in shared}
        command(_connection(**of_connection), **values)  # type: ignore[arg-type, call-arg]

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *shared)]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    # Typer must see these parameters, and not the wrapped function's.
    del with_options.__wrapped__
    return with_options


# -- a client -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def client_from(
    connection: Connection, *, quorum: Quorum | None = None, creates: bool = False, placement: str = "random"
) -> AsyncIterator[replog.Client]:
    """A client for what the options name. `creates` allows to make an embedded log that does not exist.

    Raises `ConfigError` if they name nothing, or nothing that exists, and what `embed` and `connect` raise."""
    options = connection.client_options()
    if connection.directories:
        directory, storage = _embedded(connection, creates=creates)
        async with replog.embed(
            directory,
            storage=storage,
            metastore=None if connection.metastore is None else as_it_is(connection.metastore),
            options=options,
            quorum=quorum,
            placement=placement,
        ) as client:
            yield client
        return
    if connection.storage is not None:
        raise ConfigError("--storage goes with --dir: bookies that run know their storage")
    metastore = connection.metastore or os.environ.get("REPLOG_METASTORE")
    if not metastore:
        raise ConfigError(
            "where is the data? Name the metastore of running bookies with --metastore URL (or REPLOG_METASTORE), "
            "or the directory of an embedded log with --dir DIRECTORY"
        )
    reached = replog.connect(as_it_is(metastore), options=options, quorum=quorum, placement=placement)
    async with reached as client:
        yield client


async def confirm_embedded(connection: Connection) -> None:
    """Confirms the metadata of an embedded log as it is (B6a), even if it does not know the log's bookies. Raises what `embed`
    raises."""
    directory, storage = _embedded(connection, creates=False)
    metastore = None if connection.metastore is None else as_it_is(connection.metastore)
    await confirm_embedded_metastore(directory, storage=storage, metastore=metastore)


def _embedded(connection: Connection, *, creates: bool) -> tuple[Path | list[Path], str | None]:
    """The directory of an embedded log, or those of its disks, and its storage. Raises `ConfigError`."""
    directories = [Path(each) for each in connection.directories]
    place = directories if len(directories) > 1 else directories[0]
    try:
        return place, connection.storage or _storage_of(directories, creates)
    except OSError as error:
        raise ConfigError(f"--dir: cannot be looked into: {error}") from error


def as_it_is(url: str) -> str:
    """The same URL, changed so that a misspelt name does not create a directory."""
    parsed = BackendURL.parse(url)
    # Only this metastore creates missing files; and a user who writes `create` means it.
    if parsed.scheme != "lmdb" or "create" in parsed.options:
        return url
    try:
        is_there = is_directory(parsed.rest)
    except OSError as error:
        raise ConfigError(f"{parsed.rest}: cannot be looked into: {error}") from error
    if not is_there:
        # Asked here: a question to the metastore waits for one that may be away.
        raise ConfigError(
            f"{parsed.rest}: there is no such directory, and so no metastore: name the one of the bookies"
        )
    return f"{url}{'&' if parsed.options else '?'}create=false"


def _storage_of(directories: Sequence[Path], creates: bool) -> str | None:
    """The scheme of the storage in these directories; None for the default."""
    for directory in directories:
        if names_like(directory, "bookie-[0-9]*"):
            continue
        if exists(directory / "storage.json"):
            raise ConfigError(f"--dir {directory}: is the directory of one bookie; name the one above it")
        if not creates:
            raise ConfigError(
                f"--dir {directory}: has no embedded log (no {directory}/bookie-0); "
                "name the directory that was given to replog.embed"
            )
    formats = {
        format_name(str(directory / name))
        for directory in directories
        for name in names_like(directory, "bookie-[0-9]*")
    }
    unknown = formats - {None, LMDB_FORMAT_NAME, FILES_FORMAT_NAME}
    if unknown:
        raise ConfigError(f"--dir {directories[0]}: its storage is a {unknown.pop()!r}: name it with --storage URL")
    return "lmdb" if LMDB_FORMAT_NAME in formats else None


# -- running ------------------------------------------------------------------------------------------------------


class Stop:
    """Whether the command was asked to end, by a signal or by itself.

    Once it has set `is_gentle`, the first signal only asks and the second one cancels; before, the first one cancels."""

    def __init__(self) -> None:
        self.is_asked = False
        self.is_gentle = False
        self.number: int | None = None  # of the signal, if it was one
        self._scope: trio.CancelScope | None = None

    def ask(self, number: int | None = None) -> None:
        """End a wait of `unless_asked`, and let none begin."""
        self.is_asked = True
        self.number = number if self.number is None else self.number
        if self._scope is not None:
            self._scope.cancel()

    async def unless_asked(self, wait: Callable[[], Awaitable[Result]]) -> Result | None:
        """The function's result, or None as soon as the command must end."""
        if self.is_asked:
            return None
        with trio.CancelScope() as self._scope:
            return await wait()
        return None


def run(function: Callable[..., Awaitable[Result]], *arguments: object) -> Result:
    """Run a function in trio. SIGINT, SIGTERM and SIGHUP cancel it.

    Raises `InterruptedBySignal` then, and what the function raises."""

    async def without_stop(_stop: Stop) -> Result:
        return await function(*arguments)

    return trio.run(_until_signal, without_stop)


def run_gently(function: Callable[..., Awaitable[Result]], *arguments: object) -> Result:
    """Like `run`, but give the function a `Stop` before its arguments, so that it can end by itself at a signal."""
    return trio.run(_until_signal, function, *arguments)


async def _until_signal(function: Callable[..., Awaitable[Result]], *arguments: object) -> Result:
    stop = Stop()
    results: list[Result] = []

    async def listen(scope: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(*_STOPPING) as signals:
            task_status.started()
            async for number in signals:
                # The second signal always cancels: what ends gently may wait for a bookie that is gone.
                if stop.number is not None or not stop.is_gentle:
                    scope.cancel()
                stop.ask(number)

    async with open_service_nursery() as nursery:
        await nursery.start(listen, nursery.cancel_scope)
        results.append(await function(stop, *arguments))
    if stop.number is not None:
        raise InterruptedBySignal(stop.number)
    return results[0]


async def concurrently(
    function: Callable[[Item], Awaitable[Result]], items: Iterable[Item]
) -> AsyncIterator[tuple[Item, Result]]:
    """Each item and the function's result for it, in the order of the items; some are asked for at the same time."""
    waiting = iter(items)
    # By groups: the first results are shown soon, and a million ledgers are not a million tasks.
    while group := list(itertools.islice(waiting, _AT_ONCE)):
        for item, result in zip(group, await _all_of(function, group), strict=True):
            yield item, result


async def _all_of(function: Callable[[Item], Awaitable[Result]], items: Sequence[Item]) -> list[Result]:
    found: dict[int, Result] = {}
    all_found = trio.Event()

    async def ask(place: int, item: Item) -> None:
        found[place] = await function(item)
        if len(found) == len(items):
            all_found.set()

    async with open_service_nursery() as nursery:
        for place, item in enumerate(items):
            nursery.start_soon(ask, place, item)
        await all_found.wait()
    return [found[place] for place in range(len(items))]


# -- asking people ------------------------------------------------------------------------------------------------


def confirm(question: str, yes: bool) -> None:
    """Ask on the terminal, unless `--yes` was given.

    Raises `ConfigError` if there is no terminal, and `typer.Exit` with status 1 if the answer is no."""
    if yes:
        return
    # Never a silent yes: a script that did not say so must not delete anything.
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(f"{question} There is no terminal to ask on: use --yes")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)
