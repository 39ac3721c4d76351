"""Real processes that write down what they do: `python -m tests.spec.processes FILE NUMBER ROLE ARGUMENT...`.

    bookie ARGUMENT...   the command line of a bookie
    client CONFIG        creates ledgers, takes them over or closes them, or reads them, as CONFIG says

All processes append lines of JSON to one file, each with one call, in the order in which things happen: what a client sends is
written before it is sent, what a bookie answers when it is durable and before it is answered, a change of a record within
its transaction. A process that is killed in between leaves a line too many or none too many, and `process_traces` knows which.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import attrs
import trio

import replog
from replog.abc import Storage
from replog.bookie.server import BookieServer
from replog.client.channel import BookieChannel
from replog.errors import FencedError, LedgerFinishedError, MetastoreCorruptError, ReplogError
from replog.metastores.lmdb_records import Writing
from replog.protocol.bookie import LedgerOnBookie
from replog.protocol.effects import SendAdd
from replog.protocol.messages import AddRequest
from replog.protocol.model import LedgerMetadata
from replog.records.ledgers import decode_ledger
from replog.records.paths import parse_ledger_key
from tests.failures.options import CLIENT, QUORUM
from tests.spec.recording import Recorder, applied, around, recording_machines, trace_of

_REQUESTS_BITS = 32  # of the ids of one process
_PAUSE_S = 0.03  # between two appends
_AGAIN_S = 0.3


class FileRecorder(Recorder):
    """Appends what happens to a file that many processes append to. `number` is this process's own."""

    def __init__(self, path: str, number: int) -> None:
        super().__init__()
        self.request_ids = itertools.count((number << _REQUESTS_BITS) + 1)
        self.bookie_id = ""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._number = number

    def note(self, ledger_id: int, *event: object) -> None:
        """Adds an event to a ledger's trace."""
        self._line(ledger=ledger_id, event=event)

    def cut(self, ledger_id: int) -> None:
        """What follows is not recorded."""
        raise AssertionError("no ledger is deleted in these runs")

    def began(self, record: LedgerMetadata) -> None:
        """A ledger begins with this record."""
        self._line(ledger=record.ledger_id, begins=attrs.asdict(trace_of(record)))

    def sender(self, bookie: str, request: AddRequest) -> tuple[object, ...]:
        """A bookie knows an add by its id only. Clients write down whose that is."""
        return (request.request_id,)

    def sends(self, bookie: str, request: AddRequest, nonce: str, index: int) -> None:
        """A client sends an add."""
        self._line(request=request.request_id, bookie=bookie, sender=[self.named(nonce), index])

    def wrote(self, before: LedgerMetadata | None, record: LedgerMetadata) -> None:
        """A record is being written: in the metastore's thread, while others note what machines do."""
        if before is None:
            self.began(record)
        else:
            self._line(ledger=record.ledger_id, event=self.change(before, record), process=self._number)

    def committing(self, transaction: int) -> None:
        """A transaction is about to be committed, with what this process wrote since the one before. If it is not, the next
        one, of whichever process, has its number."""
        self._line(transaction=transaction, process=self._number)

    def restarted(self, storage: Storage) -> None:
        """A bookie begins with what its disk has."""
        self.bookie_id = storage.bookie_id
        for ledger_id in storage.ledger_ids():
            marks = storage.marks(ledger_id)
            held = [
                (entry_id, each.stamp)
                for each in storage.ranges(ledger_id)
                for entry_id in range(each.first_entry_id, each.last_entry_id + 1, each.stride)
            ]
            assert marks is not None, "a ledger that is listed has marks"
            self.note(ledger_id, "restarted", self.bookie_id, marks.fence_term, held)

    def _line(self, **words: object) -> None:
        data = json.dumps(words).encode() + b"\n"
        # One call: lines of several processes never mix, and are in the order of the calls.
        written = os.write(self._file, data)
        assert written == len(data), "a line is written whole"


@contextmanager
def recording_process(recorder: FileRecorder) -> Iterator[None]:
    """Records what this process does while the context lasts, be it a client or a bookie."""
    patches = applied(
        patch.object(BookieChannel, "__init__", _numbered(recorder)),
        patch.object(BookieChannel, "ask", _asked(recorder)),
        patch.object(Writing, "create", _stored(recorder, Writing.create)),
        patch.object(Writing, "put", _stored(recorder, Writing.put)),
        around(Writing, "finish", lambda writing, _: recorder.committing(writing._transaction.id())),
        patch.object(BookieServer, "__init__", _served(recorder)),
        around(LedgerOnBookie, "answer", lambda _, done, accepted, *__: _answered(recorder, accepted.request, done)),
    )
    with recording_machines(recorder), patches:
        yield


def _answered(recorder: FileRecorder, request: Any, response: Any) -> None:
    recorder.answered(recorder.bookie_id, request, response)


def _numbered(recorder: FileRecorder) -> Callable[..., None]:
    original = BookieChannel.__init__

    @functools.wraps(original)
    def made(self: BookieChannel, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        self.request_ids = recorder.request_ids

    return made


def _asked(recorder: FileRecorder) -> Callable[..., None]:
    original = BookieChannel.ask

    def ask(self: BookieChannel, request: Any, on_answer: Any, context: Any, timeout_s: float) -> None:
        if isinstance(request, AddRequest):
            machine = on_answer.__self__._machine
            index = context.index if isinstance(context, SendAdd) else context[0]
            recorder.sends(self.bookie_id, request, machine._change._nonce, index)
        original(self, request, on_answer, context, timeout_s)

    return ask


def _stored(recorder: FileRecorder, original: Callable[..., int]) -> Callable[..., int]:
    def store(self: Writing, key: str, value: bytes, *expected: int) -> int:
        try:
            parse_ledger_key(key)
        except MetastoreCorruptError:
            return original(self, key, value, *expected)
        before = decode_ledger(key, self.get(key).value) if expected else None
        version = original(self, key, value, *expected)
        recorder.wrote(before, decode_ledger(key, value))
        return version

    return store


def _served(recorder: FileRecorder) -> Callable[..., None]:
    original = BookieServer.__init__

    @functools.wraps(original)
    def made(self: BookieServer, storage: Storage, *arguments: Any, **options: Any) -> None:
        recorder.restarted(storage)
        original(self, storage, *arguments, **options)

    return made


# -- clients ------------------------------------------------------------------------------------------------------------


@attrs.frozen
class Config:
    """What a client does: creates `creates` ledgers, every other one unbounded; or something to `ledgers`."""

    metastore: str
    verb: str
    creates: int = 0
    entries: int = 0  # that it appends to each ledger
    ledgers: tuple[int, ...] = ()


def say(**words: object) -> None:
    """Tells who started this process."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


async def run_client(config: Config) -> None:
    """Does what the configuration says to all ledgers at once."""
    async with replog.connect(config.metastore, options=CLIENT, quorum=QUORUM) as client:
        say(begins=config.verb)
        async with trio.open_nursery() as nursery:
            for number in range(config.creates):
                nursery.start_soon(_create, client, config, bool(number % 2))
            for ledger_id in config.ledgers:
                nursery.start_soon(_VERBS[config.verb], client, config, ledger_id)
    say(done=config.verb)


async def _create(client: replog.Client, config: Config, unbounded: bool) -> None:
    async with client.create_ledger(unbounded=unbounded) as writer:
        say(ledger=writer.ledger_id)
        with _failing(writer.ledger_id):
            await _append(writer, config)


async def _append(writer: Any, config: Config) -> None:
    for number in range(config.entries):
        await writer.append(b"%d" % number)
        await trio.sleep(_PAUSE_S)


@contextmanager
def _failing(ledger_id: int) -> Iterator[None]:
    """Deposed clients, and bookies that are down, are what these runs are about."""
    try:
        yield
    except ReplogError as error:
        say(failed=ledger_id, error=f"{type(error).__name__}: {error}")


async def _take_over(client: replog.Client, config: Config, ledger_id: int) -> None:
    with _failing(ledger_id):
        if not (await client.ledger_metadata(ledger_id)).is_unbounded:
            await client.recover_ledger(ledger_id)
            return
        async with client.take_over_ledger(ledger_id) as writer:
            await _append(writer, config)
            await writer.roll()


async def _finish(client: replog.Client, config: Config, ledger_id: int) -> None:
    while True:
        try:
            await client.recover_ledger(ledger_id)
        except (FencedError, LedgerFinishedError):
            raise
        except ReplogError as error:
            say(failed=ledger_id, error=f"{type(error).__name__}: {error}")
            await trio.sleep(_AGAIN_S)
        else:
            return


async def _read(client: replog.Client, config: Config, ledger_id: int) -> None:
    with _failing(ledger_id):
        async with client.open_ledger(ledger_id, follow=True) as reader:
            async for _ in reader:
                pass


_VERBS = {"take over": _take_over, "finish": _finish, "read": _read}


def main() -> None:
    """Runs a role, recorded."""
    path, number, role, *arguments = sys.argv[1:]
    with recording_process(FileRecorder(path, int(number))):
        if role == "bookie":
            sys.argv = ["replog", "bookie", *arguments]
            runpy.run_module("replog.cli", run_name="__main__")
        else:
            words = json.loads(arguments[0])
            trio.run(run_client, Config(**{**words, "ledgers": tuple(words.get("ledgers", ()))}))


if __name__ == "__main__":
    main()
