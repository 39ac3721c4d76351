"""`replog bookkeeper topic`: topics of Pulsar, from the ledgers alone."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Annotated

import attrs
import typer

from replog.cli.apps import App
from replog.cli.connecting import Connection, run
from replog.cli.entries import Delimiter, LengthPrefixed, Null, Shown, shown
from replog.cli.ledger.facts import time_for_people, time_of
from replog.cli.output import AsJSON, Listing, as_size, console, emit, print_json_line
from replog.cli.streams import write_output
from replog.config import ledger_password
from replog.errors import ConfigError, ReplogError
from replog_bookkeeper.client import Client
from replog_bookkeeper.options import Metastore, PasswordFile, client_of
from replog_bookkeeper.pulsar.errors import TopicDamagedError, TopicNotFoundError
from replog_bookkeeper.pulsar.exporting import (
    Write,
    as_fields,
    as_transaction,
    file_target,
    log_target,
)
from replog_bookkeeper.pulsar.messages import Message, Unreadable
from replog_bookkeeper.pulsar.names import Namespace, TopicName, parse_namespace
from replog_bookkeeper.pulsar.reading import Found, read_topic
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
    ("closed", -20),
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
    name = parse_namespace(text) or TopicName.parse(text)
    async with client_of(metastore) as client:
        if isinstance(name, Namespace):
            names = await list_topics(client, name)
        else:
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
            "ledger", {**fields, "closed_at": time_of(each.closed_at_ms or 0), "problem": _words(each.problem)}
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
                time_for_people(each.closed_at_ms or 0),
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
    run(_read, metastore, TopicName.parse(name), ledger_password(password_file, "--password-file"), how)


async def _read(metastore: str | None, name: TopicName, password: bytes, how: Shown) -> None:
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
    run(
        _export,
        metastore,
        TopicName.parse(name),
        ledger_password(password_file, "--password-file"),
        target,
        for_programs,
    )


async def _export(
    metastore: str | None,
    name: TopicName,
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


async def _salvage(
    client: Client, name: TopicName, password: bytes, write: Write, for_programs: bool
) -> tuple[int, int]:
    """Reads a topic, or its partitions, to the end; returns how many messages were written, and how many parts could not be."""
    partitions = await list_partitions(client, name)
    messages = problems = 0
    for each in partitions or [name]:
        tell = Teller(str(each), for_programs)
        try:
            written, lost = await _salvage_one(client, password, write, tell)
        except (TopicNotFoundError, TopicDamagedError) as error:
            if not partitions:
                raise
            tell.error(None, error)
            written, lost = 0, 1
        messages += written
        problems += lost
    return messages, problems


async def _salvage_one(client: Client, password: bytes, write: Write, tell: Teller) -> tuple[int, int]:
    messages = problems = 0
    async with read_topic(client, tell.topic, password=password) as topic:
        tell.state(topic.topic)
        async with aclosing(_groups(topic)) as groups:
            async for group, unreadable in groups:
                refused = await write(tell.topic, group) if group else []
                messages += len(group) - len(refused)
                problems += len(unreadable) + len(refused)
                for part in (*unreadable, *refused):
                    tell.error(part, part.error)
    for transaction in map(as_transaction, sorted(topic.aborted)):
        words = f"transaction {transaction} was aborted: its messages do not count"
        tell.say("aborted", words, transaction=transaction)
    return messages, problems


def _check(name: TopicName, messages: int, problems: int) -> None:
    """Raises `SalvageIncompleteError` after all else, if a part could not be read or written."""
    if problems:
        problem = f"{messages} messages were written, and {problems} parts named above were not"
        raise SalvageIncompleteError(f"{name}: {problem}")


async def _groups(found: AsyncIterator[Found]) -> AsyncGenerator[tuple[list[Message], list[Unreadable]], None]:
    """Messages in groups that are written together; before a part that is lost, those before it."""
    group, size_bytes = list[Message](), 0
    async for each in found:
        lost = [each] if isinstance(each, Unreadable) else []
        if isinstance(each, Message):
            group.append(each)
            size_bytes += len(each.data or b"")
        if lost or len(group) >= _GROUP_MESSAGES or size_bytes >= _GROUP_BYTES:
            yield group, lost
            group, size_bytes = [], 0
    yield group, []


@attrs.frozen
class Teller:
    """Tells what happens beside messages: on standard error, or in lines of JSON."""

    topic: str
    for_programs: bool

    def say(self, kind: str, words: str, **fields: object) -> None:
        """Tells one thing."""
        if self.for_programs:
            print_json_line(kind, {"topic": self.topic, **fields})
        else:
            console(stderr=True).print(f"replog: {self.topic}: {words}", soft_wrap=True)

    def error(self, part: Unreadable | None, error: ReplogError) -> None:
        """Names a part that was not read or written; None: the whole topic."""
        names = ("ledger_id", "first_entry_id", "last_entry_id")
        place = {name: getattr(part, name, None) for name in names}
        self.say("unreadable", str(part or error), **place, error=type(error).__name__, problem=str(error))

    def state(self, topic: Topic) -> None:
        """Names what may be missing without anything being lost."""
        ledgers = [each.ledger_id for each in topic.ledgers if each.is_open]
        words = [f"ledger {each} is open, and read to its last add confirmed" for each in ledgers]
        words += ["its record is lost; the ledgers that name it are read"] if topic.is_record_lost else []
        if words or self.for_programs:
            self.say("topic", "; ".join(words), is_record_lost=topic.is_record_lost, open_ledgers=ledgers)
