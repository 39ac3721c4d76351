"""`replog bookies drain` and `undrain`: leaving a bookie before it is stopped permanently; `rebalance`: filling a new one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

import attrs
import trio
import typer

from replog.api import Client
from replog.cli.connecting import Connection, client_from, run, takes_connection
from replog.cli.output import AsJSON, emit, print_json_line
from replog.cli.repair import Placement, shown_progress
from replog.errors import ConfigError, ReplogError
from replog.repair.drains import DrainStatus
from replog.repair.rebalancer import RebalanceReport

_LOOK_S = 5.0
_SETTLE_S = 15.0  # a ledger may still be created on the bookie by a client that chose it just before
_SHOWN_MAX = 20  # ledgers that are listed

Id = Annotated[str, typer.Argument(metavar="ID", help="The bookie's id, or how it begins.")]


@takes_connection
def drain(
    connection: Connection,
    bookie: Id,
    wait_s: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0, help="Go on looking until it is safe to stop it: seen twice."),
    ] = 0.0,
    recovers: Annotated[
        bool,
        typer.Option(
            "--recover", help="Close the ledgers that are still open on it. Their writers, if they live, are fenced."
        ),
    ] = False,
    for_programs: AsJSON = False,
) -> None:
    """Leave a bookie: it gets no new ledgers, and live writers replace it. Lists the ledgers that are still on it.

    Says when it is safe to stop: when no ledger has copies on it. Exit status 1 until then. Repeat it to look again."""
    if not run(_drain, connection, bookie, wait_s, recovers, for_programs):
        raise typer.Exit(1)


async def _drain(connection: Connection, text: str, wait_s: float, recovers: bool, for_programs: bool) -> bool:
    async with client_from(connection) as client:
        bookie_id = await _whole_id(client, text)
        status = await client.admin.drain(bookie_id)
        recovery = _Recovery(client, connection.password()) if recovers else None
        if wait_s:
            status = await _until_safe(client, status, wait_s, recovery)
        if recovery is not None and await recovery.close(status):
            status = await client.admin.drain_status(bookie_id)
        problems = [] if recovery is None else recovery.problems
    if for_programs:
        facts = {**attrs.asdict(status), "is_safe_to_stop": status.is_safe_to_stop, "problems": problems}
        print_json_line("drain", facts)
    else:
        emit("".join(f"{line}\n" for line in [*_words(status), *problems]))
    return status.is_safe_to_stop


class _Recovery:
    """Closes ledgers that are open on a bookie. `problems` are those of the last time."""

    def __init__(self, client: Client, password: bytes) -> None:
        self.problems: list[str] = []
        self._client = client
        self._password = password
        self._seen: frozenset[int] = frozenset()

    async def close_left(self, status: DrainStatus) -> None:
        """Closes the ledgers that were open already when this was called before: a writer that lives leaves meanwhile."""
        await self._close([each.ledger_id for each in status.open_ledgers if each.ledger_id in self._seen])
        self._seen = frozenset(each.ledger_id for each in status.open_ledgers)

    async def close(self, status: DrainStatus) -> bool:
        """Closes all of them; returns True if there were some."""
        await self._close([each.ledger_id for each in status.open_ledgers])
        return bool(status.open_ledgers)

    async def _close(self, ledger_ids: Sequence[int]) -> None:
        self.problems = []
        for ledger_id in ledger_ids:
            try:
                await self._client.recover_ledger(ledger_id, password=self._password)
            except ReplogError as error:
                self.problems.append(f"  ledger {ledger_id} was not recovered: {error}")


async def _until_safe(
    client: Client, status: DrainStatus, wait_s: float, recovery: _Recovery | None = None
) -> DrainStatus:
    """Looks until it was safe twice, `_SETTLE_S` apart, or for `wait_s`; the second look may come later. A client
    may have chosen the bookie just before the first one. With `recovery`, ledgers that stay open are closed at each look."""
    ends_at_s = trio.current_time() + wait_s
    was_safe = False
    while not (was_safe and status.is_safe_to_stop):
        was_safe = status.is_safe_to_stop
        left_s = ends_at_s - trio.current_time()
        if not was_safe and left_s <= 0:
            break
        if recovery is not None:
            await recovery.close_left(status)
        await trio.sleep(_SETTLE_S if was_safe else min(_LOOK_S, left_s))
        status = await client.admin.drain_status(status.bookie_id)
    return status


def _words(status: DrainStatus) -> list[str]:
    bookie_id = status.bookie_id
    if status.is_safe_to_stop:
        return [f"{bookie_id}: it is safe to stop: no ledger has copies on it"]
    lines = [f"{bookie_id}: it drains; don't stop it yet"]
    if not status.is_noticed:
        lines.append("  it has not said so itself: it may run an older version, or be cut off from the metastore")
    if status.open_ledgers:
        lines.append(f"  {len(status.open_ledgers)} ledgers are open on it:")
        lines += [
            f"    ledger {each.ledger_id}{f' of the log {each.log}' if each.log else ''}"
            for each in status.open_ledgers[:_SHOWN_MAX]
        ]
        lines += _more(len(status.open_ledgers))
        lines.append("  their writers leave within seconds if other bookies are there. For those that have no writer:")
        lines.append(f"    replog bookies drain {bookie_id} --recover")
    if status.copies:
        shown = ", ".join(map(str, status.copies[:_SHOWN_MAX]))
        lines.append(f"  {len(status.copies)} ledgers have copies on it: {shown}")
        lines += _more(len(status.copies))
    for ledger_id, reasons in status.reasons.items():
        lines += [f"  ledger {ledger_id} can't leave: {reason}" for reason in reasons]
    if any(each not in status.reasons for each in status.copies):
        lines.append("  A repair moves copies off it: `replog repair`, or what runs `replog repair --watch`")
    return lines


def _more(count: int) -> list[str]:
    return [f"    and {count - _SHOWN_MAX} more"] if count > _SHOWN_MAX else []


@takes_connection
def undrain(connection: Connection, bookie: Id, for_programs: AsJSON = False) -> None:
    """Let a bookie get new ledgers again."""
    bookie_id = run(_undrain, connection, bookie)
    if for_programs:
        print_json_line("undrain", {"bookie_id": bookie_id})
    else:
        emit(f"{bookie_id}: gets new ledgers again\n")


async def _undrain(connection: Connection, text: str) -> str:
    async with client_from(connection) as client:
        bookie_id = await _whole_id(client, text)
        await client.admin.undrain(bookie_id)
        return bookie_id


@takes_connection
def rebalance(
    connection: Connection, bookie: Id, placement: Placement = "random", for_programs: AsJSON = False
) -> None:
    """Move copies onto a bookie that has few, from those that have most, until it has its share. Appends go on.

    Exit status 1 if some could not be moved: type it again."""
    report = run(_rebalance, connection, bookie, placement, for_programs)
    if report.moved < report.planned:
        raise typer.Exit(1)


async def _rebalance(connection: Connection, text: str, placement: str, for_programs: bool) -> RebalanceReport:
    async with client_from(connection, placement=placement) as client:
        bookie_id = await _whole_id(client, text)
        with shown_progress(is_quiet=for_programs) as progress:
            report = await client.admin.rebalance(bookie_id, progress=progress)
    if for_programs:
        print_json_line("rebalance", attrs.asdict(report))
    else:
        emit(
            f"{bookie_id}: {report.moved} of {report.planned} fragments were moved there; it has {report.entries} copies of "
            f"entries, {report.share} would be its share\n"
        )
    return report


async def _whole_id(client: Client, text: str) -> str:
    """The bookie that is meant, announced or not."""
    return only_one(text, await client.admin.known_bookies(), "the metastore knows no such bookie")


def only_one(text: str, known: Collection[str], missing: str) -> str:
    """The only one of these ids that begins so, with or without `bookie-`. Raises `ConfigError`, with `missing` if none does."""
    # A whole id wins: it may be the beginning of another one.
    if text in known:
        return text
    like = [each for each in known if each.startswith((text, f"bookie-{text}"))]
    if len(like) != 1:
        problem = "more than one bookie's id begins so" if like else missing
        raise ConfigError(f"{text!r}: {problem}; there are {', '.join(like or known) or 'none'}")
    return like[0]
