"""`replog log append`: append standard input, or arguments, as entries to a log.

Rules: entries are pushed as they come and confirmed in batches; no entry waits for the next one. At the end of the
input, at a signal, and when the positions are not read any more, the entries read are confirmed before the command
ends. If it fails, it says how many entries are confirmed and which have an unknown outcome (W4).
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Annotated

import attrs
import trio
import typer

from replog.api import Client
from replog.cli.connecting import Connection, Stop, client_from, run_gently, takes_connection
from replog.cli.ending import status_for
from replog.cli.entries import Delimiter, Form, InputError, LengthPrefixed, Null, form_of
from replog.cli.figures import counted, parse_quorum_option
from replog.cli.output import AsJSON, OutputClosed, as_size, emit, print_json, print_json_line, standard_output, watched
from replog.cli.streams import input_bytes, read_input, write_output
from replog.errors import ConfigError, ReplogError
from replog.log.log_options import LogOptions
from replog.log.log_writer import LogWriter
from replog.protocol.digest import DigestType
from replog.protocol.envelope import EntryId
from replog.protocol.model import Position
from replog.protocol.producers import entry_id_of
from replog.protocol.quorum import Quorum
from replog.runtime.nursery import open_service_nursery

_PACED_BYTES = 1 << 20  # a pace measured over fewer bytes would mean nothing
_WITH_IDS_AT_ONCE = 1000  # entries with ids that are in flight together
_UNSETTLED_MAX = 100_000  # entries pushed and not confirmed, or not printed: the client bounds their bytes


class AppendFailedError(ReplogError):
    """Not all entries were confirmed. The message says which are, and which have an unknown outcome."""


@attrs.frozen
class Asked:
    """The options of the command."""

    name: str
    entries: tuple[str, ...]
    form: Form
    leads: bool
    positions: bool
    for_programs: bool
    quorum: Quorum | None
    digest_type: DigestType
    ledgers: str | None
    key: bytes | None = None
    headers: dict[str, bytes] = attrs.field(factory=dict)
    first_id: EntryId | None = None


@takes_connection
def append(
    connection: Connection,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The log; it is created if need be.")],
    entries: Annotated[
        list[str] | None,
        typer.Argument(metavar="ENTRY", help="What to append. Left out: each line of standard input."),
    ] = None,
    delimiter: Delimiter = None,
    null: Null = False,
    length_prefixed: LengthPrefixed = False,
    whole: Annotated[bool, typer.Option("--whole", help="All of standard input is one entry.")] = False,
    lead: Annotated[bool, typer.Option("--lead", help="Wait until no other client leads the log.")] = False,
    positions: Annotated[
        bool, typer.Option("--positions", help="Print each entry's position once it is confirmed.")
    ] = False,
    quorum: Annotated[
        str | None,
        typer.Option(
            metavar="ENSEMBLE,WRITE,ACK", help="How widely it is stored. Left out: 3,3,2 or all embedded bookies."
        ),
    ] = None,
    digest: Annotated[str, typer.Option(metavar="TYPE", help="crc32c, or hmac-sha256 with a password.")] = "crc32c",
    ledgers: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="bounded, or unbounded: leaders go on in one ledger. Left out: as the log has it."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="The key of each entry.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=TEXT", help="A header of each entry. May be repeated.")
    ] = None,
    first_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="PRODUCER:SEQUENCE",
            help="The id of the first entry; each further one has the next sequence. An entry whose id is in the log is not "
            "appended again.",
        ),
    ] = None,
    for_programs: AsJSON = False,
) -> None:
    """Append to a log, and print the positions of the entries once they are confirmed.

    Takes the log over now: its previous writer is fenced. An entry is a line, without its end."""
    form = form_of(delimiter, null, length_prefixed, whole)
    if entries and (delimiter is not None or null or length_prefixed or whole):
        raise ConfigError("entries are given as arguments: leave --delimiter, --null, --length-prefixed, --whole out")
    asked = Asked(
        name,
        tuple(entries or ()),
        form,
        lead,
        positions,
        for_programs,
        parse_quorum_option(quorum),
        _digest_type(digest),
        ledgers,
        None if key is None else os.fsencode(key),
        _headers(header or ()),
        None if first_id is None else _entry_id(first_id),
    )
    standard_output()  # do not begin if the result cannot be printed
    run_gently(_append, connection, asked)


def _entry_id(text: str) -> EntryId:
    producer, _, sequence = text.rpartition(":")
    if not producer or not (sequence.isascii() and sequence.isdecimal()):
        raise ConfigError(f"--id {text}: it is written PRODUCER:SEQUENCE, as in till-1:42")
    return entry_id_of((producer, int(sequence)))


def _headers(texts: Iterable[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or name in found:
            problem = "there is one of this name" if separator else "it is written NAME=TEXT"
            raise ConfigError(f"--header {text}: {problem}")
        found[name] = os.fsencode(value)
    return found


def _digest_type(text: str) -> DigestType:
    for each in DigestType:
        if each.name.lower().replace("_", "-") == text.lower().replace("_", "-"):
            return each
    raise ConfigError(f"--digest {text}: there are crc32c and hmac-sha256")


async def _append(stop: Stop, connection: Connection, asked: Asked) -> None:
    # Read it first: a bad file must not fence the previous writer.
    password = connection.password()
    appending = Appending(asked, stop)
    try:
        async with (
            client_from(connection, quorum=asked.quorum, creates=True) as client,
            _writer(client, asked, password) as log,
        ):
            await appending.run(log)
    except ReplogError as error:
        appending.sum_up(error)
        if not appending.tally.pushed and status_for(error) != 1:
            raise  # what was asked for can't be
        raise AppendFailedError(f"{error}. {appending.outcome()}") from error
    # The second signal: said at once, since the caller only learns that it was interrupted.
    except trio.Cancelled:
        if appending.tally.pushed:
            print(f"replog: {appending.outcome()}", file=sys.stderr)
        raise
    appending.sum_up()
    if appending.output_closed is not None:
        raise appending.output_closed


def _writer(client: Client, asked: Asked, password: bytes) -> AbstractAsyncContextManager[LogWriter]:
    custom = {"writer": f"replog log append, process {os.getpid()} on {socket.gethostname()}"}
    if asked.leads and sys.stderr.isatty():
        print(f"replog: waiting to lead log {asked.name}", file=sys.stderr)
    opened = client.lead_log if asked.leads else client.write_log
    options = LogOptions(
        quorum=asked.quorum, password=password, digest=asked.digest_type, custom=custom, ledgers=asked.ledgers
    )
    return opened(asked.name, options=options)


class Tally:
    """The pushed entries, and how far they are confirmed."""

    def __init__(self) -> None:
        self.pushed = 0
        self.pushed_bytes = 0
        self.confirmed = 0
        self.first: Position | None = None
        self.last_confirmed: Position | None = None
        self._spans: deque[tuple[int, range]] = deque()  # segments and entries: pushed, not confirmed, in order

    def push(self, position: Position, size_bytes: int) -> None:
        """Note that an entry was pushed to this position."""
        self.pushed += 1
        self.pushed_bytes += size_bytes
        segment, entry = position
        if self._spans and self._spans[-1][0] == segment:
            self._spans[-1] = (segment, range(self._spans[-1][1].start, entry + 1))
        else:
            self._spans.append((segment, range(entry, entry + 1)))
        if self.first is None:
            self.first = position

    def confirmed_at(self, position: Position, size_bytes: int) -> None:
        """Note an entry that is confirmed, maybe since an earlier time."""
        self.pushed += 1
        self.pushed_bytes += size_bytes
        self.confirmed += 1
        self.first = self.first or position
        self.last_confirmed = position

    def confirm(self, last: Position | None) -> list[Position]:
        """Note that all up to this one are confirmed; return those that were not known to be."""
        news: list[Position] = []
        while last is not None and self._spans and (self._spans[0][0], self._spans[0][1].start) <= last:
            segment, entries = self._spans.popleft()
            end = entries.stop if segment < last.segment else min(entries.stop, last.entry + 1)
            news += (Position(segment, entry) for entry in range(entries.start, end))
            if end < entries.stop:
                self._spans.appendleft((segment, range(end, entries.stop)))
        if news:
            self.confirmed += len(news)
            self.last_confirmed = news[-1]
        return news

    @property
    def unknown(self) -> tuple[Position, Position] | None:
        """The first and the last entry that are pushed and not confirmed."""
        if not self._spans:
            return None
        (first_segment, first), (last_segment, last) = self._spans[0], self._spans[-1]
        return Position(first_segment, first.start), Position(last_segment, last.stop - 1)


class Appending:
    """Pushes the entries as they come, and prints the confirmed ones."""

    def __init__(self, asked: Asked, stop: Stop) -> None:
        self.tally = Tally()
        self.output_closed: OutputClosed | None = None
        self._asked = asked
        self._next_id = asked.first_id
        self._stop = stop
        self._log: LogWriter | None = None
        self._settled = 0  # confirmed, and printed if that is wanted
        self._has_pushed = trio.Event()
        self._has_settled = trio.Event()
        self._sizes: deque[int] = deque()  # of those that are not settled, if each is printed with it
        self._unfinished_bytes = 0
        self._began_s = time.monotonic()

    async def run(self, log: LogWriter) -> None:
        """Append until the input ends, or the command must end; then wait until all is confirmed.

        Raises `InputError` after that, `StreamError`, and as the writer does."""
        self._log = log
        self._stop.is_gentle = True
        total_bytes = None if self._asked.entries else input_bytes()
        is_typed = sys.stdin is not None and sys.stdin.isatty()
        is_quiet = is_typed or (self._asked.positions and standard_output().isatty())
        problem: InputError | None = None
        with watched(f"log {self._asked.name}", total_bytes, is_quiet=is_quiet) as tell:
            async with open_service_nursery() as nursery:
                nursery.start_soon(self._settle, log)
                try:
                    await self._feed(log, tell)
                except InputError as error:
                    problem = error
                while self._settled < self.tally.pushed:
                    await self._wait_settled()
        if problem is not None:
            raise problem

    async def _feed(self, log: LogWriter, tell: Callable[[int], None]) -> None:
        if self._asked.entries:
            await self._push(log, map(os.fsencode, self._asked.entries))
            return
        form = self._asked.form
        while True:
            data = await self._stop.unless_asked(read_input)
            if data is None:
                self._unfinished_bytes = form.unfinished_bytes
                return
            await self._push(log, form.cut(data) if data else form.end())
            if not data:
                return
            tell(len(data))

    async def _push(self, log: LogWriter, entries: Iterable[bytes]) -> None:
        if self._next_id is not None:
            some = iter(entries)
            while chunk := list(itertools.islice(some, _WITH_IDS_AT_ONCE)):
                await self._push_once(log, chunk)
            return
        keeps_sizes = self._asked.positions and self._asked.for_programs
        key, headers = self._asked.key, self._asked.headers
        try:
            for entry in entries:
                # Entries of few bytes would pass the client's budget in millions, and each has a place in the tally.
                while self.tally.pushed - self._settled >= _UNSETTLED_MAX:
                    await self._wait_settled()
                try:
                    position = log.push_nowait(entry, key=key, headers=headers)
                except trio.WouldBlock:
                    self._has_pushed.set()
                    position = await log.push(entry, key=key, headers=headers)
                self.tally.push(position, len(entry))
                if keeps_sizes:
                    self._sizes.append(len(entry))
        finally:
            self._has_pushed.set()

    async def _push_once(self, log: LogWriter, entries: list[bytes]) -> None:
        """Appends entries with ids. One that is in the log already has its position there: so they need not follow each other."""
        key, headers = self._asked.key, self._asked.headers
        positions = []
        for entry in entries:
            assert self._next_id is not None, "it was asked for"
            producer, sequence = self._next_id
            positions.append(await log.push(entry, key=key, headers=headers, id=self._next_id))
            self._next_id = EntryId(producer, sequence + 1)
        await log.flush()
        for position, entry in zip(positions, entries, strict=True):
            self.tally.confirmed_at(position, len(entry))
        if self._asked.positions:
            self._sizes.extend(map(len, entries) if self._asked.for_programs else ())
            await self._print(positions)
        self._settled += len(entries)

    async def _wait_settled(self) -> None:
        self._has_pushed.set()
        self._has_settled = trio.Event()
        await self._has_settled.wait()

    async def _settle(self, log: LogWriter) -> None:
        while True:
            await self._has_pushed.wait()
            self._has_pushed = trio.Event()
            while self._settled < self.tally.pushed:
                await log.flush()
                # Read again, and not taken from what `flush` waited for: more may be confirmed by now.
                news = self.tally.confirm(log.last_add_confirmed)
                if self._asked.positions and news:
                    await self._print(news)
                self._settled += len(news)
                self._has_settled.set()

    async def _print(self, positions: list[Position]) -> None:
        lines = [str(position) for position in positions]
        if self._asked.for_programs:
            sizes = [self._sizes.popleft() for _ in lines]
            lines = [
                json.dumps({"kind": "entry", "position": line, "size_bytes": size})
                for line, size in zip(lines, sizes, strict=True)
            ]
        if self.output_closed is not None:
            return
        try:
            await write_output("".join(f"{line}\n" for line in lines).encode())
        except OutputClosed as error:
            # Confirm the entries read even if the positions are not read.
            self.output_closed = error
            self._stop.ask()

    # -- how it went ----------------------------------------------------------------------------------------------

    def outcome(self) -> str:
        """The confirmed and the unknown entries, in words."""
        tally = self._counted()
        if not tally.pushed:
            return "Nothing was appended"
        known = f"{tally.confirmed} entries are confirmed"
        if tally.last_confirmed is not None:
            known += f" ({tally.first}..{tally.last_confirmed})"
        if tally.unknown is None:
            return known
        first, last = tally.unknown
        unknown = f"of {tally.pushed - tally.confirmed} more the outcome is unknown ({first}..{last})"
        return f"{known}; {unknown}: what a reader finds after the next takeover is there, and nothing else"

    def _counted(self) -> Tally:
        if self._log is not None:
            self.tally.confirm(self._log.last_add_confirmed)
        return self.tally

    def sum_up(self, error: ReplogError | None = None) -> None:
        """Print the result: always for programs, for people only if all went well."""
        tally = self._counted()
        duration_s = time.monotonic() - self._began_s
        unknown = tally.unknown or (None, None)
        if self._asked.for_programs:
            summary = {
                "log": self._asked.name,
                "entries": tally.confirmed,
                "first_position": _text(tally.first if tally.confirmed else None),
                "last_position": _text(tally.last_confirmed),
                "unknown_entries": tally.pushed - tally.confirmed,
                "first_unknown_position": _text(unknown[0]),
                "last_unknown_position": _text(unknown[1]),
                "pushed_bytes": tally.pushed_bytes,
                "unfinished_bytes": self._unfinished_bytes,
                "duration_s": round(duration_s, 6),
                "error": None if error is None else str(error),
            }
            if self._asked.positions:
                print_json_line("summary", summary)
            else:
                print_json(summary)
            return
        if self._unfinished_bytes:
            print(
                f"replog: {self._unfinished_bytes} bytes of an entry that wasn't whole were left out", file=sys.stderr
            )
        if error is None and not self._asked.positions:
            emit(f"{self._sentence(duration_s)}\n")

    def _sentence(self, duration_s: float) -> str:
        tally, name = self.tally, self._asked.name
        if not tally.confirmed:
            return f"log {name}: nothing to append"
        count = counted(tally.confirmed, "entry", "entries")
        where = f"at {tally.first}" if tally.confirmed == 1 else f"from {tally.first} to {tally.last_confirmed}"
        size, rate = as_size(tally.pushed_bytes), as_size(int(tally.pushed_bytes / max(duration_s, 0.001)))
        pace = f", {rate}/s" if tally.pushed_bytes >= _PACED_BYTES else ""
        return f"log {name}: {count} appended {where}, {size}{pace}"


def _text(position: Position | None) -> str | None:
    return None if position is None else str(position)
