"""`replog metastore`: the members that keep a cluster's metastore themselves, and changes of who they are."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from replog.abc import Metastore
from replog.api.metadata_copy import check_nobody_lives, read_metadata, write_metadata
from replog.api.own_member import MEMBER_DIRECTORY
from replog.api.reaching import opened_metastore
from replog.cli.apps import App
from replog.cli.connecting import Connection, as_it_is, run, takes_connection
from replog.cli.figures import counted
from replog.cli.output import AsJSON, Listing, emit, print_json
from replog.config import ClientOptions
from replog.errors import ConfigError
from replog.metastores.quorum.addresses import normalized
from replog.metastores.quorum.beginning import begin_with
from replog.metastores.quorum.metastore import QuorumMetastore
from replog.metastores.quorum.questions import QuestionKind, check_prefix
from replog.metastores.quorum.rescuing import Survivor, look
from replog.metastores.quorum.rescuing import rescue as rescue_member
from replog.registry import Registry

app = App(no_args_is_help=True, help="Look after the members of a metastore that a cluster keeps itself.")

_STATUS_TIMEOUT_S = 5.0
_CHANGE_TIMEOUT_S = 60.0
_FIELDS = (
    *("name", "address", "problem", "cluster", "role", "leader", "leader_address", "term"),
    *("last_index", "committed_index", "applied_index", "is_changing", "survives", "members"),
)
_FIELDS_OF_OTHERS = ("name", "address", "behind", "answers")
_COLUMNS = (("member", -16), ("address", -24), ("role", -10), ("behind", 7), ("term", 5), ("where", -1))

Member = Annotated[str, typer.Argument(metavar="MEMBER", help="Its address, its name, or how this begins.")]
Address = Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the new member is reached.")]


@asynccontextmanager
async def _metastore(connection: Connection) -> AsyncIterator[QuorumMetastore]:
    async with _any_metastore(connection) as opened:
        if not isinstance(opened, QuorumMetastore):
            raise ConfigError("this metastore is not kept by members of its own: only quorum: has these commands")
        yield opened


@asynccontextmanager
async def _any_metastore(connection: Connection) -> AsyncIterator[Metastore]:
    if connection.directories:
        raise ConfigError(
            "--dir is for an embedded log: name a metastore of members with --metastore quorum:HOST:PORT,..."
        )
    url = connection.metastore or os.environ.get("REPLOG_METASTORE")
    if not url:
        raise ConfigError("which metastore? Name it with --metastore quorum:HOST:PORT,... (or REPLOG_METASTORE)")
    async with opened_metastore(as_it_is(url), connection.client_options()) as opened:
        yield opened


@app.command("status")
@takes_connection
def status(connection: Connection, for_programs: AsJSON = False) -> None:
    """Show the members: who leads, who is behind, and how many may be lost now. Needs no majority.

    Exit status 1 if no member leads, or no majority answers.
    """
    found = run(_status, connection)
    leading = next((each for each in found if each.get("role") == "leader"), None)
    if for_programs:
        members = [_as_json(each) for each in found]
        leader, survives = (None, None) if leading is None else (leading["name"], _or_unknown(leading["survives"]))
        print_json({"leader": leader, "survives": survives, "members": members})
    else:
        _print_status(found, leading)
    if _survives(leading) < 0:
        raise typer.Exit(1)


async def _status(connection: Connection) -> list[dict[str, Any]]:
    async with _metastore(connection) as metastore:
        return await metastore.status(_STATUS_TIMEOUT_S)


def _survives(leading: Mapping[str, Any] | None) -> int:
    return -1 if leading is None else int(leading["survives"])


def _as_json(member: Mapping[str, Any]) -> dict[str, Any]:
    """All fields; null is unknown. Members' words of others are None if it did not answer, or waits for its cluster."""
    others = [{**dict.fromkeys(_FIELDS_OF_OTHERS), **each} for each in member.get("members", ())]
    return {
        **dict.fromkeys(_FIELDS),
        **member,
        "problem": member.get("problem") or None,
        "survives": _or_unknown(member.get("survives")),
        "members": others or None,
    }


def _or_unknown(survives: int | None) -> int | None:
    """A leader says -1 where no majority answers it."""
    return None if survives is None or survives < 0 else survives


def _print_status(found: list[dict[str, Any]], leading: Mapping[str, Any] | None) -> None:
    if leading is None:
        emit("no member leads: nothing can be read or changed\n")
    else:
        emit(
            f"cluster {leading['cluster']}  leader {leading['address']}  term {leading['term']}  "
            f"entry {leading['committed_index']} committed\n"
        )
    behind = {each["name"]: each["behind"] for each in leading["members"]} if leading is not None else {}
    listing = Listing(*_COLUMNS)
    for each in found:
        name = each.get("name")
        listing.add(
            [
                name,
                each["address"],
                each.get("role"),
                None if name not in behind or name == (leading or {}).get("name") else str(behind[name]),
                None if "term" not in each else str(each["term"]),
                each.get("problem") or None,
            ]
        )
    spare = _survives(leading)
    emit(
        f"survives the loss of: {counted(spare, 'member') if spare else 'none'}\n"
        if spare >= 0
        else "no majority answers the leader\n"
    )


@app.command("add")
@takes_connection
def add(connection: Connection, address: Address, for_programs: AsJSON = False) -> None:
    """Let a new member in, which was started with the others as its peers. Returns once it has everything."""
    _change(connection, QuestionKind.ADD, {"address": address}, for_programs=for_programs)


@app.command("remove")
@takes_connection
def remove(connection: Connection, member: Member, for_programs: AsJSON = False) -> None:
    """Let a member go: it keeps no metadata any more. Its bookie stays; drain that first if it goes, too."""
    _change(connection, QuestionKind.REMOVE, {"member": member}, for_programs=for_programs)


@app.command("replace")
@takes_connection
def replace(connection: Connection, member: Member, address: Address, for_programs: AsJSON = False) -> None:
    """Let a new member in, in the place of one that is gone or goes. Returns once it has everything."""
    _change(connection, QuestionKind.REPLACE, {"member": member, "address": address}, for_programs=for_programs)


def _change(connection: Connection, kind: QuestionKind, facts: Mapping[str, Any], *, for_programs: bool) -> None:
    async def ask() -> Mapping[str, Any]:
        async with _metastore(connection) as metastore:
            return await metastore.administer(kind, facts, _CHANGE_TIMEOUT_S)

    members = run(ask)["members"]
    if for_programs:
        print_json({"members": members})
    else:
        emit(f"{counted(len(members), 'member')}: {', '.join(sorted(members.values()))}\n")


# -- from another metastore, and to one ----------------------------------------------------------------------------------


@app.command("found")
def found(
    source: Annotated[str, typer.Option("--from", metavar="URL", help="The metastore to leave, as for --metastore.")],
    data: Annotated[Path, typer.Option(metavar="DIR", help="The directory of the process, as for --data or embed.")],
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where peers will reach this process.")],
    prefix: Annotated[str, typer.Option(help="What all keys begin with, as in quorum:m1:3181/PREFIX.")] = "",
    for_programs: AsJSON = False,
) -> None:
    """Begin a cluster with the metadata of another metastore: of one member, which lets others in.

    Offline: all processes must have ended. The other metastore is not changed.
    """
    member = normalized(address)
    check_prefix(prefix)
    keys = run(_read_dead, source)
    placed = {f"{prefix}/{key}" if prefix else key: value for key, value in keys.items()}
    cluster = begin_with(data / MEMBER_DIRECTORY, member, placed)
    if for_programs:
        print_json({"cluster": cluster, "keys": len(keys)})
        return
    emit(
        f"{member} is cluster {cluster} now, alone, with {counted(len(keys), 'key')}. Start its process with "
        f"--peers; start the others, and let each in with: replog metastore add HOST:PORT. Nothing may use {source} any more\n"
    )


async def _read_dead(source: str) -> dict[str, bytes]:
    async with opened_metastore(as_it_is(source), ClientOptions()) as opened:
        await check_nobody_lives(opened)
        return await read_metadata(opened)


@app.command("save")
@takes_connection
def save(
    connection: Connection,
    target: Annotated[str, typer.Argument(metavar="URL", help="An empty metastore, such as lmdb:./saved.")],
    for_programs: AsJSON = False,
) -> None:
    """Copy the metadata, as of one moment, to another metastore. Whoever writes should have ended."""

    async def copy() -> int:
        async with _any_metastore(connection) as source:
            keys = await read_metadata(source)
        async with opened_metastore(target, connection.client_options()) as opened:
            await write_metadata(opened, keys)
        return len(keys)

    copied = run(copy)
    if for_programs:
        print_json({"keys": copied})
    else:
        emit(f"{counted(copied, 'key')} copied to {target}\n")


# -- after the loss of a majority -------------------------------------------------------------------------------------


@app.command("rescue")
def rescue(
    directories: Annotated[
        list[str],
        typer.Argument(metavar="DIR...", help="The directory of each process that is left: as for --data or embed."),
    ],
    force: Annotated[bool, typer.Option("--force", help="Make the best one a cluster of its own.")] = False,
    for_programs: AsJSON = False,
) -> None:
    """Show what members that are left have, after the loss of a majority; with --force, go on with the best of them alone.

    Offline: their processes must have ended. All that was decided after the last entry of the best one is lost.
    """
    found = sorted((look(Path(each) / MEMBER_DIRECTORY) for each in directories), reverse=True)
    best = found[0]
    if len({each.cluster for each in found}) > 1:
        raise ConfigError("these directories belong to different clusters: name those of one")
    cluster = None
    if force:
        run(_check_alone, found)
        cluster = rescue_member(Path(best.directory))
    if for_programs:
        print_json({"found": [attrs.asdict(each) for each in found], "best": best.name, "cluster": cluster})
        return
    listing = Listing(
        ("member", -16), ("address", -24), ("term", 5), ("entry", 9), ("last change", -20), ("directory", -1)
    )
    for each in found:
        values = [each.name, each.address, each.last_term, each.last_index, _as_time(each.last_ms), each.directory]
        listing.add(values)
    if cluster is None:
        emit(
            f"{best.name} has most. What was decided after its entry {best.last_index} is lost if you go on with it: --force\n"
        )
        return
    emit(
        f"{best.name} is cluster {cluster} now, alone. Start its process as before. On the other machines empty or move "
        "away only the directory `metastore` in --data, and keep the rest, which has entries; start each, and let it in with: "
        "replog metastore add HOST:PORT. Then: replog ledger raise-ids, and when nothing newer "
        "can come back: replog bookies collect-garbage --after-restore\n"
    )


async def _check_alone(found: list[Survivor]) -> None:
    """Raises `ConfigError` if a member answers: two clusters would go on side by side."""
    addresses = {address for each in found for address in (each.address, *each.others)}
    members = Registry().open_metastore(f"quorum:{','.join(sorted(addresses))}")
    assert isinstance(members, QuorumMetastore), "the scheme says so"
    try:
        answering = [each["address"] for each in await members.status(_STATUS_TIMEOUT_S) if "name" in each]
    finally:
        await members.aclose()
    if answering:
        raise ConfigError(
            f"a member answers at {', '.join(answering)}: end it first. If a majority is left, there is nothing to rescue"
        )


def _as_time(ms: int | None) -> str | None:
    return None if ms is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(ms / 1000))
