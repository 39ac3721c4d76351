"""`replog bookies`: list the announced bookies and have them do maintenance, wherever they run."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import attrs
import trio
import typer

from replog.api import Client
from replog.cli.apps import App
from replog.cli.connecting import Connection, client_from, confirm_embedded, run, takes_connection
from replog.cli.draining import drain, only_one, rebalance, undrain
from replog.cli.figures import as_count, as_duration, counted
from replog.cli.output import (
    AsJSON,
    Listing,
    as_size,
    console,
    emit,
    print_json_line,
)
from replog.cli.top.command import as_json, look_twice, metastore_patience_s
from replog.cli.top.model import Cluster, Row
from replog.cli.top.polling import Poller
from replog.client.administration import (
    COMPACT_TIMEOUT_S,
    GARBAGE_TIMEOUT_S,
    SCRUB_TIMEOUT_S,
    RemoteBookie,
)
from replog.errors import BookieError, ConfigError, MetastoreError

app = App(invoke_without_command=True)

_COLUMNS = (
    ("bookie", -39),
    ("state", -11),
    ("up", 6),
    ("entries/s", 9),
    ("ledgers", 7),
    ("used", 10),
    ("free", 10),
    ("version", -10),
    ("labels", -12),
    ("where", -1),
)
_LOOK_INTERVAL_S = 0.5
_LOOK_TIMEOUT_S = 3.0

Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="Which bookies: their ids, or how these begin. All, if none is named."),
]
AtOnce = Annotated[int, typer.Option("--at-once", min=1, max=64, help="How many bookies work on it at a time.")]


def _timeout(default_s: float) -> Any:
    return typer.Option(
        "--timeout", metavar="SECONDS", min=0.1, help="How long one bookie may take.", show_default=f"{default_s:g}"
    )


# -- the list -----------------------------------------------------------------------------------------------------


@app.callback()
@takes_connection
def bookies(connection: Connection, context: typer.Context, for_programs: AsJSON = False) -> None:
    """List the announced bookies and their states; or have them collect garbage, compact or scrub."""
    if context.invoked_subcommand is None:
        run(_list, connection, for_programs)
        return
    # The options of this list and those of its commands have the same names: one that was typed before the
    # command would be taken for the list's, and silently ignored.
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        name = context.invoked_subcommand
        raise ConfigError(f"options come after the command: replog bookies {name} --metastore URL, not before {name}")


async def _list(connection: Connection, for_programs: bool) -> None:
    async with client_from(connection) as client:
        cluster = Cluster()
        poller = Poller(
            client,
            cluster,
            interval_s=_LOOK_INTERVAL_S,
            timeout_s=_LOOK_TIMEOUT_S,
            metastore_timeout_s=metastore_patience_s(connection),
        )
        await look_twice(poller)
        now_s = trio.current_time()
        if cluster.problem:
            raise MetastoreError(cluster.problem)
        if for_programs:
            for each in as_json(cluster, now_s)["bookies"]:
                print_json_line("bookie", each)
        else:
            _print_list(cluster.rows(now_s))


def _print_list(rows: Sequence[Row]) -> None:
    """The address, or the reason why it is unknown, comes last: it may be long."""
    listing = Listing(*_COLUMNS)
    for row in rows:
        figures = row.figures
        # An address of `memory:` helps only inside the bookie's own process.
        endpoints = [each for each in row.endpoints if not each.startswith("memory:")] or row.endpoints
        where = ", ".join(endpoints)
        problem = row.problem.removeprefix(f"bookie {row.bookie_id}: ")
        listing.add(
            [
                row.bookie_id,
                row.state.value,
                as_duration(figures.uptime_s),
                as_count(figures.entries_rate),
                as_count(figures.ledgers),
                _size(figures.used_bytes),
                _size(figures.free_bytes),
                row.version or None,
                ",".join(f"{name}={value}" for name, value in sorted(row.labels.items())) or None,
                f"{where}: {problem}" if problem else where,
            ]
        )


def _size(value: float | None) -> str | None:
    return None if value is None else as_size(round(value))


# -- work ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class _Done:
    """The result of one bookie's work: facts for programs, and a sentence for people.

    `is_well` unless the work failed or found damage."""

    facts: dict[str, object]
    sentence: str
    is_well: bool = True


Work = Callable[[RemoteBookie], Awaitable[_Done]]


@app.command("collect-garbage")
@takes_connection
def collect_garbage(
    connection: Connection,
    ids: Ids = None,
    timeout_s: Annotated[float, _timeout(GARBAGE_TIMEOUT_S)] = GARBAGE_TIMEOUT_S,
    at_once: AtOnce = 1,
    after_restore: Annotated[
        bool,
        typer.Option(
            "--after-restore",
            help="The metastore is right as it is, although the bookies have seen a newer one: it was restored from a back-up, "
            "and nothing newer is left. What only the newer one named is dropped.",
        ),
    ] = False,
    for_programs: AsJSON = False,
) -> None:
    """Have bookies drop the deleted ledgers now."""
    if after_restore and connection.directories:
        run(confirm_embedded, connection)

    async def collect(bookie: RemoteBookie) -> _Done:
        if after_restore:
            await bookie.confirm_metastore(timeout_s=timeout_s)
        dropped = await bookie.collect_garbage(timeout_s=timeout_s)
        return _Done({"dropped_ledgers": dropped}, f"{counted(len(dropped), 'deleted ledger')} dropped")

    _have(connection, ids, collect, "collecting garbage", at_once, for_programs)


@app.command("compact")
@takes_connection
def compact(
    connection: Connection,
    ids: Ids = None,
    is_major: Annotated[bool, typer.Option("--all", help="Even where little is to be gained.")] = False,
    timeout_s: Annotated[float, _timeout(COMPACT_TIMEOUT_S)] = COMPACT_TIMEOUT_S,
    at_once: AtOnce = 1,
    for_programs: AsJSON = False,
) -> None:
    """Have bookies free the space of deleted entries now. Reads and appends go on."""

    async def give_back(bookie: RemoteBookie) -> _Done:
        before = (await bookie.statistics()).numbers.get("used_bytes")
        await bookie.compact(is_major=is_major, timeout_s=timeout_s)
        after = (await bookie.statistics()).numbers.get("used_bytes")
        return _Done({"used_bytes_before": before, "used_bytes": after}, f"compacted: {_change(before, after)}")

    _have(connection, ids, give_back, "compacting", at_once, for_programs)


@app.command("scrub")
@takes_connection
def scrub(
    connection: Connection,
    ids: Ids = None,
    timeout_s: Annotated[float, _timeout(SCRUB_TIMEOUT_S)] = SCRUB_TIMEOUT_S,
    at_once: AtOnce = 1,
    for_programs: AsJSON = False,
) -> None:
    """Have bookies read and check all their entries now. Exit status 1 if anything is damaged."""

    async def check(bookie: RemoteBookie) -> _Done:
        damage = await bookie.scrub(timeout_s=timeout_s)
        lines = [
            f"\n  ledger {each.ledger_id}, entries {each.first_entry_id}..{each.last_entry_id}: {each.description}"
            for each in damage
        ]
        sentence = (
            f"scrubbed: {counted(len(damage), 'batch', 'batches')} damaged{''.join(lines)}"
            if damage
            else "scrubbed: all well"
        )
        return _Done({"damage": [attrs.asdict(each) for each in damage]}, sentence, is_well=not damage)

    _have(connection, ids, check, "scrubbing", at_once, for_programs)


@app.command("lost")
@takes_connection
def lost(
    connection: Connection,
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="The whole ids of the bookies that never come back.")
    ],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on although confirmed entries may be gone.")
    ] = False,
    for_programs: AsJSON = False,
) -> None:
    """Declare bookies permanently lost: recoveries no longer wait for them, and they never serve again.

    Lists the entries that may be lost with them, and then asks to be run again with --accept-loss."""
    run(_declare_lost, connection, ids, accept_loss, for_programs)


app.command("drain")(drain)
app.command("undrain")(undrain)
app.command("rebalance")(rebalance)


async def _declare_lost(connection: Connection, ids: Sequence[str], accept_loss: bool, for_programs: bool) -> None:
    async with client_from(connection) as client:
        at_risk = await client.admin.declare_lost(ids, accept_loss=accept_loss)
    if for_programs:
        print_json_line("lost", {"bookie_ids": list(ids), "entries_at_risk": [attrs.asdict(each) for each in at_risk]})
        return
    emit(f"declared lost: {', '.join(ids)}\n")
    for each in at_risk:
        emit(f"  may be gone: {each}\n")


def _change(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return "its storage does not report its size"
    freed = round(before - after)
    return (
        f"{as_size(freed)} given back, {as_size(round(after))} used" if freed > 0 else f"{as_size(round(after))} used"
    )


def _have(
    connection: Connection, ids: Sequence[str] | None, work: Work, doing: str, at_once: int, for_programs: bool
) -> None:
    if not run(_work, connection, tuple(ids or ()), work, doing, at_once, for_programs):
        raise typer.Exit(1)


async def _work(
    connection: Connection, ids: Sequence[str], work: Work, doing: str, at_once: int, for_programs: bool
) -> bool:
    """Have all of them do it, and print the result of each when it is done. True if all went well."""
    all_well = True
    limit = trio.CapacityLimiter(at_once)

    async def have(bookie: RemoteBookie) -> None:
        nonlocal all_well
        try:
            began_s = time.monotonic()
            with progress(bookie.bookie_id):
                done = await _tried(bookie, work)
            _tell(bookie, done, time.monotonic() - began_s, for_programs)
            all_well = all_well and done.is_well
        finally:
            limit.release_on_behalf_of(bookie)

    async with client_from(connection) as client:
        wanted = await chosen(client, ids)
        with _progress(doing, is_quiet=for_programs) as progress:
            async with trio.open_nursery() as nursery:
                for bookie in wanted:
                    # Here, and not in the task: bookies begin in the order of their ids, and none waits in a crowd.
                    await limit.acquire_on_behalf_of(bookie)
                    nursery.start_soon(have, bookie)
    return all_well


async def _tried(bookie: RemoteBookie, work: Work) -> _Done:
    try:
        return await work(bookie)
    except (BookieError, MetastoreError) as error:
        return _Done({"problem": str(error)}, "", is_well=False)


def _tell(bookie: RemoteBookie, done: _Done, took_s: float, for_programs: bool) -> None:
    if for_programs:
        facts = {"bookie_id": bookie.bookie_id, "problem": None, **done.facts, "duration_s": round(took_s, 6)}
        print_json_line("bookie", facts)
    elif "problem" in done.facts:
        print(f"replog: after {as_duration(took_s)}: {done.facts['problem']}", file=sys.stderr)
    else:
        emit(f"{bookie.bookie_id}: after {as_duration(took_s)} {done.sentence}\n")


async def chosen(client: Client, ids: Sequence[str]) -> list[RemoteBookie]:
    """The announced bookies whose ids begin with these; all if none is given.

    Raises `ConfigError` for one that is not announced, or that is ambiguous."""
    announced = await client.admin.bookies()
    if not announced:
        raise ConfigError("no bookie is announced in this metastore: start one with `replog bookie`")
    if not ids:
        return announced
    by_id = {each.bookie_id: each for each in announced}
    wanted = dict.fromkeys(only_one(each, by_id, "no such bookie is announced") for each in ids)
    return [by_id[each] for each in wanted]


@contextmanager
def _progress(doing: str, *, is_quiet: bool) -> Iterator[Callable[[str], Any]]:
    """Contexts in which a spinner shows what a bookie does, if standard error is a terminal."""
    if is_quiet or sys.stderr is None or not sys.stderr.isatty():
        yield _not_shown
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True, refresh_per_second=4) as shown:

        @contextmanager
        def show(bookie_id: str) -> Iterator[None]:
            task = shown.add_task(f"{bookie_id}: {doing}", total=None)
            try:
                yield
            finally:
                shown.remove_task(task)

        yield show


@contextmanager
def _not_shown(bookie_id: str) -> Iterator[None]:
    yield
