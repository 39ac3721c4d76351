"""The shell of a simulated reader of one ledger: it polls, reads, and begins again where it failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from replog.errors import EntryNotFoundError, LedgerNotFoundError, LedgerTrimmedError, RemoteProtocolError
from replog.protocol.effects import Delivered, Effect, Failed, ReadMetadata, SendRead, SendReadLastAddConfirmed
from replog.protocol.messages import ReadLastAddConfirmedRequest, ReadRequest, Response, Status
from replog.protocol.model import LedgerMetadata
from replog.protocol.reading import LedgerReading
from tests.simulator.clients import Client, digest_and_key
from tests.simulator.metastore import Outcome

_POLL = 70
_RETRY = 150
_METADATA_POLLS = 4  # the metadata is reread every so many polls


class ReaderShell:
    """Reads one ledger from an entry to its end. `on_end` is told whether the ledger still exists."""

    def __init__(self, client: Client, ledger_id: int, first: int, on_end: Callable[[bool], None]) -> None:
        self.client = client
        self.world = client.world
        self.ledger_id = ledger_id
        self.machine: LedgerReading | None = None
        self.is_done = False
        self.digest, self.key = digest_and_key(ledger_id, self.world.plan.digest_type)
        self._next_entry_id = first
        self._on_end = on_end
        self._polls = 0
        self._oracle = client.setting.oracle
        self._oracle.clients.reader_starts(client.name, ledger_id, first)

    # -- metadata --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Reads the metadata and begins."""
        if not self.is_done:
            self.client.metastore.get(self.client, self.ledger_id, self._metadata_found)

    def _metadata_found(self, outcome: Outcome, record: Any, version: int) -> None:
        if outcome is Outcome.UNCERTAIN:
            self.client.after(_RETRY, self.start)
        elif outcome is Outcome.MISSING:
            self._end(False)
        else:
            self.begin(record)

    def begin(self, record: LedgerMetadata) -> None:
        """Begins with this metadata, which may be old."""
        if self.is_done:
            return
        self.machine = LedgerReading(record, self.digest, self._next_entry_id, self._order)
        self._poll(self.machine)

    def _order(self, write_set: Sequence[int], _ensemble: tuple[str, ...]) -> list[int]:
        bits, _ = self.world.draw(self.client.number, self.client.number, "order", self.ledger_id)
        rest = list(write_set)
        return [rest.pop((bits >> 6 * turn) % len(rest)) for turn in range(len(rest))]

    def _poll(self, machine: LedgerReading) -> None:
        if self.is_done or machine is not self.machine:
            return
        self._polls += 1
        if self._polls % _METADATA_POLLS == 0:
            polled = partial(self._metadata_polled, machine)
            self.client.metastore.get(self.client, self.ledger_id, polled, machine.next_entry_id)
        machine.poll_last_add_confirmed()
        machine.read_on()
        self.pump(machine)
        self.client.after(_POLL, self._poll, machine)

    def _metadata_polled(self, machine: LedgerReading, outcome: Outcome, record: Any, version: int) -> None:
        if machine is not self.machine or self.is_done or outcome is Outcome.UNCERTAIN:
            return
        if outcome is Outcome.MISSING:
            machine.metadata_missing()
        else:
            machine.metadata_read(record)
            machine.read_on()
        self.pump(machine)

    # -- effects -----------------------------------------------------------------------------------------------------

    def pump(self, machine: LedgerReading) -> None:
        """Does what the machine wants done."""
        if machine is not self.machine:
            return
        effects = machine.take_effects()
        while effects:
            for effect in effects:
                self._perform(machine, effect)
                if self.is_done or machine is not self.machine:
                    return
            machine.read_on()
            effects = machine.take_effects()
        if machine.is_at_end:
            self._end(True)

    def _perform(self, machine: LedgerReading, effect: Effect) -> None:
        if isinstance(effect, SendRead):
            self._send_read(machine, effect)
        elif isinstance(effect, SendReadLastAddConfirmed):
            self._send_poll(machine, effect)
        elif isinstance(effect, Delivered):
            if self.world.transcript is not None:
                span = f"{self.ledger_id}/{effect.first_entry_id}..{effect.last_entry_id}"
                self.world.tell(f"{self.client.name}: read {span}")
            first, last = effect.first_entry_id, effect.last_entry_id
            if last < max(batch.last_entry_id for batch in effect.batches):
                self.world.count("reader trimmed a batch")
            self._oracle.clients.delivered(self.client.name, self.ledger_id, first, last, effect.batches)
            self._next_entry_id = last + 1
        elif isinstance(effect, ReadMetadata):
            self.client.metastore.get(self.client, self.ledger_id, partial(self._reread, machine, effect.at), effect.at)
        elif isinstance(effect, Failed):
            self._failed(effect)

    def _reread(self, machine: LedgerReading, at: int | None, outcome: Outcome, record: Any, version: int) -> None:
        if machine is self.machine and outcome is Outcome.UNCERTAIN:
            self.client.after(_RETRY, self._perform, machine, ReadMetadata(self.ledger_id, at))
        else:
            if record is not None and record.fragments != machine.metadata.fragments:
                self.world.count("reader found newer metadata")
            self._metadata_polled(machine, outcome, record, version)

    def _failed(self, effect: Failed) -> None:
        self.world.count(f"reader failed: {type(effect.error).__name__}")
        self.machine = None
        if type(effect.error) is EntryNotFoundError and not self._oracle.facts.ledgers[self.ledger_id].deleted:
            self._oracle.fail("D2", f"{self.client.name}: {effect.error}")
        if isinstance(effect.error, LedgerTrimmedError):
            self._next_entry_id = effect.error.first_available
            self._oracle.clients.reader_starts(self.client.name, self.ledger_id, self._next_entry_id)
        if isinstance(effect.error, LedgerNotFoundError):
            self._end(False)
        else:
            self.client.after(_RETRY, self.start)

    def _send_read(self, machine: LedgerReading, effect: SendRead) -> None:
        request = ReadRequest(0, self.ledger_id, self.key, effect.entry_id, effect.stamp, 1 << 20)
        index, entry_id = effect.index, effect.entry_id

        def answered(response: Response | None, in_time: bool) -> None:
            if response is not None and response.status is Status.OK:
                machine.read_found(index, entry_id, response.batches)
            elif in_time and response is not None and response.status is Status.NO_ENTRY:
                machine.read_absent(index, entry_id)
            elif in_time:
                machine.read_unknown(index, entry_id)
            self.pump(machine)

        subject = 1000 * self.ledger_id + entry_id
        self.client.call(effect.bookie_id, "read", subject, request, answered)
        bits, _ = self.world.draw(self.client.number, self.client.number, "speculate", subject)
        if bits & 3 == 0:
            self.client.after(self.world.rates.timeout // 4, self._slow, machine, entry_id)

    def _slow(self, machine: LedgerReading, entry_id: int) -> None:
        machine.read_slow(entry_id)
        self.pump(machine)

    def _send_poll(self, machine: LedgerReading, effect: SendReadLastAddConfirmed) -> None:
        request = ReadLastAddConfirmedRequest(0, self.ledger_id, self.key, effect.after, 0)
        if self._polls % 2:  # else it reads
            request.entry_id, request.stamp, request.bytes_max = effect.entry_id, effect.stamp, 1 << 20

        def answered(response: Response | None, in_time: bool) -> None:
            if response is not None and response.status is Status.OK:
                before = machine.next_entry_id
                with suppress(RemoteProtocolError):  # then it has not answered (R11)
                    machine.last_add_confirmed_answered(machine.proven(response.proof), response.batches)
                if machine.next_entry_id > before:
                    self.world.count("reader was brought entries with the last add confirmed")
                machine.read_on()
                self.pump(machine)

        self.client.call(effect.bookie_id, "read-confirmed", 1000 * self.ledger_id, request, answered)

    def _end(self, exists: bool) -> None:
        if not self.is_done:
            self.is_done = True
            self._on_end(exists)

    def stop(self) -> None:
        """Reads no more."""
        self.is_done = True
