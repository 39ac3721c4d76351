"""`replog bookkeeper topic`: topics of Pulsar, from the ledgers alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

import attrs
import typer

from replog.cli.apps import App
from replog.cli.connecting import Connection, run
from replog.cli.entries import Delimiter, LengthPrefixed, Null, Shown, shown
from replog.cli.output import AsJSON, Listing, as_size, console, emit, print_json_line
from replog.cli.streams import write_output
from replog.config import ledger_password
from replog.errors import ConfigError, ReplogError
from replog_bookkeeper.client import Client
from replog_bookkeeper.options import Metastore, PasswordFile, client_of
from replog_bookkeeper.pulsar.exporting import (
    Write,
    as_fields,
    as_milliseconds,
    as_transaction,
    file_target,
    log_target,
)
from replog_bookkeeper.pulsar.messages import Message, Unreadable
from replog_bookkeeper.pulsar.names import TopicName, parse_namespace
from replog_bookkeeper.pulsar.reading import read_topic
from replog_bookkeeper.pulsar.topics import (
    Subscription,
    Topic,
    describe_topic,
    list_partitions,
    list_subscriptions,
    list_topics,
)

_LEDGERS = (
    ("ledger", 12),
    ("state", -11),
    ("entries", 9),
    ("size", 9),
    ("closed", -24),
    ("copy in", -9),
    ("problem", -20),
)
_SUBSCRIPTIONS = (("subscription", -24), ("acknowledged", -16), ("ranges after", 12), ("problem", -20))
_GROUP_MESSAGES, _GROUP_BYTES = 10_000, 4 << 20  # written together

topics = App(
    no_args_is_help=True, help="Salvage topics of Pulsar from their ledgers. No broker is needed, none is fenced."
)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="persistent://TENANT/NAMESPACE/TOPIC")]


class SalvageIncompleteError(ReplogError):
    """All that could be read was written, and something could not be. Retry: after what was listed is there again."""


# -- list ---------------------------------------------------------------------------------------------------------


@topics.command("list")
def list_topic(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="A topic, or persistent://TENANT/NAMESPACE")],
    metastore: Metastore = None,
    password_file: PasswordFile = None,
    for_programs: AsJSON = False,
) -> None:
    """List what there is of a topic: its ledgers, its subscriptions, its partitions; or the topics of a namespace.

    --json writes a line for each, whose kind is ledger, subscription, topic or record."""
    run(_list, metastore, name, ledger_password(password_file, "--password-file"), for_programs)


async def _list(metastore: str | None, text: str, password: bytes, for_programs: bool) -> None:
    namespace = parse_namespace(text)
    async with client_of(metastore) as client:
        if namespace is not None:
            names = await list_topics(client, namespace)
        else:
            name = TopicName.parse(text)
            names = await list_partitions(client, name)
            if not names:
                topic = await describe_topic(client, name)
                found = await list_subscriptions(client, name, password=password)
                (_print_json if for_programs else _print)(topic, found)
    for each in names:
        if for_programs:
            print_json_line("topic", {"name": str(each)})
        else:
            emit(f"{each}\n")


def _print_json(topic: Topic, subscriptions: list[Subscription]) -> None:
    end = None if topic.terminated_at is None else str(topic.terminated_at)
    record = {"name": str(topic.name), "is_lost": topic.is_record_lost, "terminated_at": end}
    print_json_line("record", {**record, "properties": dict(topic.properties)})
    for each in topic.ledgers:
        fields = attrs.asdict(each, filter=lambda field, _: field.name not in ("closed_at_ms", "problem"))
        print_json_line(
            "ledger", {**fields, "closed_at": as_milliseconds(each.closed_at_ms), "problem": _words(each.problem)}
        )
    for one in subscriptions:
        fields = {
            "name": one.name,
            "acknowledged": None if one.acknowledged is None else str(one.acknowledged),
            "also_acknowledged": [[str(lower), str(upper)] for lower, upper in one.also_acknowledged],
            "partly_acknowledged": [str(each) for each in one.partly_acknowledged],
            "properties": dict(one.properties),
            "problem": _words(one.problem),
        }
        print_json_line("subscription", fields)


def _print(topic: Topic, subscriptions: list[Subscription]) -> None:
    if topic.is_record_lost:
        emit(f"{topic.name}: its record is lost; these ledgers say that they are of it\n\n")
    Listing.show(
        _LEDGERS,
        (
            (
                each.ledger_id,
                each.state,
                each.entries,
                as_size(each.size_bytes),
                as_milliseconds(each.closed_at_ms),
                each.offloaded_to,
                _words(each.problem),
            )
            for each in topic.ledgers
        ),
    )
    rows = ((each.name, each.acknowledged, len(each.also_acknowledged), _words(each.problem)) for each in subscriptions)
    Listing.show(_SUBSCRIPTIONS, rows)
    if topic.terminated_at is not None:
        emit(f"terminated at {topic.terminated_at}\n")


def _words(problem: ReplogError | None) -> str | None:
    return None if problem is None else str(problem)


# -- read ---------------------------------------------------------------------------------------------------------


@topics.command()
def read(
    name: Name,
    metastore: Metastore = None,
    password_file: PasswordFile = None,
    delimiter: Delimiter = None,
    null: Null = False,
    length_prefixed: LengthPrefixed = False,
    for_programs: AsJSON = False,
) -> None:
    """Write the data of a topic's messages to standard output, each followed by a newline; of a partitioned topic those of all
    partitions, one after the other.

    --json writes a line for each, with its key, properties and times. Standard error names what cannot be read, with --json a
    line of the kind unreadable; the exit status is 1 then."""
    how = shown(delimiter, null, length_prefixed, for_programs=for_programs)
    run(_read, metastore, name, ledger_password(password_file, "--password-file"), how)


async def _read(metastore: str | None, name: str, password: bytes, how: Shown) -> None:
    async def write(topic: str, group: Sequence[Message]) -> list[Unreadable]:
        if how.for_programs:
            lines = (json.dumps({"kind": "message", **as_fields(topic, each)}).encode() + b"\n" for each in group)
            await write_output(b"".join(lines))
        else:
            await write_output(how.form.joined([each.data or b"" for each in group]))
        return []

    async with client_of(metastore) as client:
        _check(name, *await _salvage(client, name, password, write, how.for_programs))


# -- export -------------------------------------------------------------------------------------------------------


@topics.command()
def export(
    name: Name,
    json_lines: Annotated[
        Path | None, typer.Option("--json-lines", metavar="FILE", help="Write a new file of JSON lines.")
    ] = None,
    parquet: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a new Parquet file.")] = None,
    log: Annotated[str | None, typer.Option(metavar="NAME", help="Write a new log of replog's.")] = None,
    log_metastore: Annotated[
        str | None, typer.Option(metavar="URL", help="With --log: the metastore of replog's bookies.")
    ] = None,
    directory: Annotated[
        str | None, typer.Option("--dir", metavar="DIRECTORY", help="With --log: the directory of an embedded log.")
    ] = None,
    metastore: Metastore = None,
    password_file: PasswordFile = None,
    for_programs: AsJSON = False,
) -> None:
    """Write a topic's messages, with their keys, properties and times, to one target; of a partitioned topic those of all
    partitions, one after the other.

    Parts that cannot be read are named, and the exit status is 1 then."""
    if [json_lines, parquet, log].count(None) != 2:
        raise ConfigError("where to? One of --json-lines FILE, --parquet FILE and --log NAME")
    target: AbstractAsyncContextManager[Write]
    if log is not None:
        target = log_target(Connection(log_metastore, (directory,) if directory else ()), log)
    else:
        path = json_lines or parquet
        assert path is not None, "counted above"
        target = file_target(path, is_parquet=json_lines is None)
    run(_export, metastore, name, ledger_password(password_file, "--password-file"), target, for_programs)


async def _export(
    metastore: str | None,
    name: str,
    password: bytes,
    target: AbstractAsyncContextManager[Write],
    for_programs: bool,
) -> None:
    async with client_of(metastore) as client, target as write:
        messages, problems = await _salvage(client, name, password, write, for_programs)
    if for_programs:
        print_json_line("exported", {"messages": messages})
    else:
        emit(f"{messages} messages exported\n")
    _check(name, messages, problems)


# -- both ---------------------------------------------------------------------------------------------------------


async def _salvage(client: Client, text: str, password: bytes, write: Write, for_programs: bool) -> tuple[int, int]:
    """Reads a topic, or its partitions, to the end; returns how many messages were written, and how many parts could not be."""
    name = TopicName.parse(text)
    messages = problems = 0
    for each in await list_partitions(client, name) or [name]:
        async with read_topic(client, str(each), password=password) as topic:
            _tell_state(topic.topic, for_programs)
            async for group, unreadable in _groups(topic):
                refused = await write(str(each), group) if group else []
                messages += len(group) - len(refused)
                problems += len(unreadable) + len(refused)
                for part in (*unreadable, *refused):
                    _tell(str(each), part, for_programs)
        for transaction in sorted(topic.aborted):
            _tell_aborted(str(each), as_transaction(transaction), for_programs)
    return messages, problems


def _check(name: str, messages: int, problems: int) -> None:
    """Raises `SalvageIncompleteError` after all else, if a part could not be read or written."""
    if problems:
        raise SalvageIncompleteError(
            f"{name}: {messages} messages were written, and {problems} parts named above were not"
        )


async def _groups(found: AsyncIterator[Message | Unreadable]) -> AsyncIterator[tuple[list[Message], list[Unreadable]]]:
    """Messages in groups that are written together; before a part that is lost, those before it."""
    group, size_bytes = list[Message](), 0
    async for each in found:
        if isinstance(each, Unreadable):
            yield group, [each]
            group, size_bytes = [], 0
            continue
        group.append(each)
        size_bytes += len(each.data or b"")
        if len(group) >= _GROUP_MESSAGES or size_bytes >= _GROUP_BYTES:
            yield group, []
            group, size_bytes = [], 0
    yield group, []


def _tell(topic: str, part: Unreadable, for_programs: bool) -> None:
    if for_programs:
        place = {
            "ledger_id": part.ledger_id,
            "first_entry_id": part.first_entry_id,
            "last_entry_id": part.last_entry_id,
        }
        what = {"error": type(part.error).__name__, "problem": str(part.error)}
        print_json_line("unreadable", {"topic": topic, **place, **what})
    else:
        _say(f"{topic}: {part}")


def _tell_aborted(topic: str, transaction: str | None, for_programs: bool) -> None:
    if for_programs:
        print_json_line("aborted", {"topic": topic, "transaction": transaction})
    else:
        _say(f"{topic}: transaction {transaction} was aborted: its messages do not count")


def _tell_state(topic: Topic, for_programs: bool) -> None:
    """Names what may be missing without anything being lost."""
    open_ledgers = [each.ledger_id for each in topic.ledgers if each.is_open]
    if for_programs:
        print_json_line(
            "topic", {"topic": str(topic.name), "is_record_lost": topic.is_record_lost, "open_ledgers": open_ledgers}
        )
        return
    if topic.is_record_lost:
        _say(f"{topic.name}: its record is lost; the ledgers that name it are read")
    for ledger_id in open_ledgers:
        _say(
            f"{topic.name}: ledger {ledger_id} is open, and read to its last add confirmed; if no broker writes it, recover it"
        )


def _say(words: str) -> None:
    console(stderr=True).print(f"replog: {words}", soft_wrap=True)
