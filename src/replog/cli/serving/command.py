"""`replog bookie` itself: its flags, and the configuration that results."""

from __future__ import annotations

import os
from typing import Annotated, Any

import attrs
import trio
import typer

from replog.cli.ending import status_for
from replog.cli.output import AsJSON, add_row, new_table, print_json, print_table
from replog.cli.serving.settings import Layers, Settings, settle
from replog.errors import ConfigError, ReplogError
from replog.registry import Registry

# Flags that are options of their own, by table and name. All others are reached with --set.
_FLAGS = {
    "metastore": ("bookie", "metastore"),
    "data": ("bookie", "data"),
    "listen": ("bookie", "listen"),
    "peers": ("bookie", "peers"),
    "storage": ("bookie", "storage"),
    "authentication": ("bookie", "authentication"),
    "label": ("bookie", "labels"),
    "repair": ("bookie", "repair"),
    "advertise": ("tcp", "advertise"),
    "tls_certificate": ("tcp", "tls_certificate_file"),
    "tls_key": ("tcp", "tls_key_file"),
    "tls_ca": ("tcp", "tls_ca_file"),
    "metrics": ("metrics", "listen"),
    "log_format": ("logging", "format"),
    "log_level": ("logging", "level"),
}


def _flag(text: str, metavar: str) -> Any:
    return typer.Option(help=text, metavar=metavar, show_default=False)


def serve(
    context: typer.Context,
    metastore: Annotated[str | None, _flag("The metastore that the bookie announces itself in.", "URL")] = None,
    data: Annotated[str | None, _flag("The directory of the bookie's data.", "DIR")] = None,
    listen: Annotated[
        list[str] | None,
        _flag(
            "Where to listen, also several times: HOST:PORT (port 0: any), unix:PATH. Default: 127.0.0.1:3181.",
            "ADDRESS",
        ),
    ] = None,
    advertise: Annotated[
        str | None, _flag("Where others must connect, if that is another address.", "HOST:PORT")
    ] = None,
    peers: Annotated[
        str | None, _flag("All processes that keep the metastore together, instead of --metastore.", "HOST:PORT,...")
    ] = None,
    storage: Annotated[
        str | None, _flag("files, lmdb, or a plugin's, maybe with options. Default: files.", "KIND")
    ] = None,
    metrics: Annotated[str | None, _flag("Where /metrics and /health are. Default: nowhere.", "HOST:PORT")] = None,
    tls_certificate: Annotated[str | None, _flag("The bookie's certificate: it speaks TLS then.", "FILE")] = None,
    tls_key: Annotated[str | None, _flag("Its key, if it is not in the same file.", "FILE")] = None,
    tls_ca: Annotated[str | None, _flag("Only clients with a certificate of this authority.", "FILE")] = None,
    authentication: Annotated[str | None, _flag("How clients prove who they are. Default: none.", "URL")] = None,
    label: Annotated[
        list[str] | None, _flag("Where it is, for placement: zone=a, rack=r1; also several times.", "NAME=VALUE")
    ] = None,
    repair: Annotated[str | None, _flag("auto: take part in audits and repairs. Default: off.", "HOW")] = None,
    config: Annotated[str | None, _flag("A TOML file with options. Default: that of REPLOG_CONFIG.", "FILE")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="Any option at all.", metavar="TABLE.OPTION=VALUE")
    ] = None,
    log_format: Annotated[str | None, _flag("json, text or auto: text on a terminal. Default: auto.", "FORMAT")] = None,
    log_level: Annotated[str | None, _flag("debug, info, warning or error. Default: info.", "LEVEL")] = None,
    after_restore: Annotated[
        bool,
        typer.Option(
            "--after-restore",
            help="The metastore is right as it is, although the bookie has seen a newer one. For one start, after a restore.",
        ),
    ] = False,
    show_config: Annotated[bool, typer.Option("--show-config", help="Print what holds, and end.")] = False,
    for_programs: AsJSON = False,
) -> None:
    """Serve a bookie until SIGTERM; or make its storage, or say what that is.

    Flags come first, then the environment (REPLOG_BOOKIE_METASTORE, ...), then --config. The first signal makes it leave
    in order: exit status 0. A second one ends it at once.
    """
    if context.invoked_subcommand is not None:
        _refuse_flags(context)
        return
    registry = Registry()
    settings = settle(_layers(context, config, assignments or (), for_programs=for_programs), registry)
    if show_config:
        _show(settings, for_programs=for_programs)
        return
    _serve(attrs.evolve(settings, after_restore=after_restore))


def _serve(settings: Settings) -> None:
    # Imported here: `bookie format` and `bookie info` serve nothing.
    from replog.cli.serving.log_lines import Logs, Observer
    from replog.cli.serving.process import run_bookie

    with Logs(settings.logging) as logs:
        observer = Observer(logs.log)
        try:
            trio.run(run_bookie, settings, logs, observer, Registry({"log of the process": observer}))
        except ReplogError as error:
            # For people, the error is one line on standard error as with all commands;
            # for programs, it is a line of the log.
            if logs.is_text:
                raise
            logs.log.error("failed", error=type(error).__name__, problem=str(error))
            raise typer.Exit(status_for(error)) from error


def _refuse_flags(context: typer.Context) -> None:
    given = [name for name in context.params if _is_typed(context, name)]
    if given:
        command = context.invoked_subcommand
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(f"{flags} before {command}: is for serving; put the options of {command} after it")


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _layers(
    context: typer.Context, config: str | None, assignments: list[str] | tuple[()], *, for_programs: bool
) -> Layers:
    layers = Layers()
    # A flag comes before the variable, as for every other option.
    config = config or os.environ.get("REPLOG_CONFIG")
    if config:
        layers.read_file(config)
    layers.read_environment(os.environ)
    layers.read_assignments(assignments)
    # `--json` asks for a log that programs can read, unless the format of the log is given, too.
    if for_programs and context.params["log_format"] is None:
        layers.give("logging", "format", "json", "--json")
    for parameter, (table, name) in _FLAGS.items():
        value = context.params[parameter]
        # An empty list means that the flag was not given.
        if value is not None and (value or isinstance(value, str)):
            layers.give(table, name, value, f"--{parameter.replace('_', '-')}")
    return layers


def _show(settings: Settings, *, for_programs: bool) -> None:
    if for_programs:
        tables: dict[str, dict[str, object]] = {}
        for each in settings.shown:
            tables.setdefault(each.table, {})[each.option] = {"value": each.value, "from": each.source}
        print_json(tables)
        return
    table = new_table("option", "value", "from")
    for each in settings.shown:
        value = ", ".join(each.value) if isinstance(each.value, list) else each.value
        add_row(table, f"{each.table}.{each.option}", "" if value is None else value, each.source)
    print_table(table)
