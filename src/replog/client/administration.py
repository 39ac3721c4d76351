"""Bookies as an administrator sees them: their statistics, and the maintenance that they can be asked to run.

Each call goes to the address that the bookie announces at that moment, so a bookie that was restarted elsewhere is found again. A
run that has begun there goes on to its end, even if the caller is cancelled or stops waiting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
import trio

from replog.abc import Damage
from replog.client.channel import Answer
from replog.client.connections import Connections
from replog.client.membership import Membership
from replog.errors import AdministrationError, BookieError, BookieTooBusyError, BookieUnreachableError
from replog.protocol.messages import AdminCommand, AdminRequest, Response, Status
from replog.records.bookies import BookieAddress, Endpoint
from replog.runtime.latencies import LatencyHistogram

STATISTICS_TIMEOUT_S = 5.0
GARBAGE_TIMEOUT_S = 600.0
COMPACT_TIMEOUT_S = 3600.0
SCRUB_TIMEOUT_S = 24 * 3600.0


@attrs.frozen
class BookieStatistics:
    """A bookie's statistics: `numbers` are counters since its start and gauges, as `ServedBookie.statistics` has them.

    `latencies` are two histograms, each with `count`, `total_s`, `quantile(share)` and `since(earlier)`: `commit` is a call to
    its storage, `answer` is from accepting the first request of a commit to answering it."""

    bookie_id: str
    version: str
    numbers: Mapping[str, float]
    latencies: Mapping[str, LatencyHistogram]


class RemoteBookie:
    """A bookie as it was announced when this was made. Made by `Client.admin.bookies`, wherever the bookie runs.

    Each call asks the bookie where it is announced now, and all but `statistics` need the role of an administrator, where
    bookies ask who connects.

    All calls raise `BookieUnreachableError` if there is no connection, or no answer in time (the command may have been
    executed, or may be under way); `AdministrationError` if the bookie could not execute it, or not for this client;
    `BookieTooBusyError` if other requests keep it busy; and `MetastoreError` if its address can't be read. If the caller is
    cancelled, or the time is up, the run goes on there to its end."""

    def __init__(self, connections: Connections, bookie_id: str, address: BookieAddress) -> None:
        self.bookie_id = bookie_id  #: The bookie's identity.
        self.endpoints: tuple[Endpoint, ...] = address.endpoints  #: Each has a `scheme` and an `address`; best first.
        self.read_only = address.read_only  #: True if it takes no new entries.
        self.draining = address.is_draining  #: True if it drains.
        self.doubts_metastore = address.doubts_metastore  #: True if it has seen newer metadata than the metastore's.
        self.problem = address.problem  #: Why it takes no entries, in words.
        self.labels: Mapping[str, str] = dict(address.labels)  #: Facts for placement, like `{"zone": "a"}`.
        self._connections = connections

    def __repr__(self) -> str:
        return f"<RemoteBookie {self.bookie_id} at {', '.join(map(str, self.endpoints)) or 'no endpoint'}>"

    async def statistics(self, *, timeout_s: float = STATISTICS_TIMEOUT_S) -> BookieStatistics:
        """Returns its statistics as they are now. Any client may ask."""
        found = await self._ask(AdminCommand.STATISTICS, timeout_s)
        latencies = found.pop("latencies", {})
        version = found.pop("version", "")
        try:
            numbers = {name: float(value) for name, value in found.items()}
            histograms = {name: LatencyHistogram.from_json(value) for name, value in latencies.items()}
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise self._nonsense(f"its statistics don't read: {error}") from error
        return BookieStatistics(self.bookie_id, str(version), numbers, histograms)

    async def collect_garbage(self, *, timeout_s: float = GARBAGE_TIMEOUT_S) -> list[int]:
        """Makes it drop deleted ledgers now, and returns their ids, at most the first 20 000 (B6). A ledger that exists is never
        dropped."""
        found = await self._ask(AdminCommand.COLLECT_GARBAGE, timeout_s)
        try:
            return [int(each) for each in found["dropped_ledgers"]]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise self._nonsense(f"it names no dropped ledgers: {error!r}") from error

    async def confirm_metastore(self, *, timeout_s: float = GARBAGE_TIMEOUT_S) -> None:
        """Confirms that its metastore is right as it is: it was restored from a back-up, and nothing newer is left
        (B6a). Entries that only the lost metadata named are garbage from then on."""
        await self._ask(AdminCommand.CONFIRM_METASTORE, timeout_s)

    async def compact(self, *, is_major: bool = False, timeout_s: float = COMPACT_TIMEOUT_S) -> None:
        """Makes it free unused space now; unless `is_major`, only where most of it is gained. Reads and appends go on."""
        await self._ask(AdminCommand.COMPACT_ALL if is_major else AdminCommand.COMPACT, timeout_s)

    async def scrub(self, *, timeout_s: float = SCRUB_TIMEOUT_S) -> list[Damage]:
        """Makes it read and check all its data, and returns the damaged batches, at most the first 500."""
        found = await self._ask(AdminCommand.SCRUB, timeout_s)
        try:
            return [_damage(**each) for each in found["damage"]]
        except (KeyError, TypeError) as error:
            raise self._nonsense(f"it tells no damage: {error!r}") from error

    async def _ask(self, command: AdminCommand, timeout_s: float) -> dict[str, Any]:
        return await ask_bookie(self.bookie_id, self._connections, command, timeout_s)

    def _nonsense(self, problem: str) -> AdministrationError:
        return _nonsense(self.bookie_id, problem)


async def ask_bookie(
    bookie_id: str, connections: Connections, command: AdminCommand, timeout_s: float
) -> dict[str, Any]:
    """The JSON object with which a bookie answers. Raises as the calls of `RemoteBookie`."""
    answers: list[Answer] = []
    came = trio.Event()

    def on_answer(answer: Answer, _context: object) -> None:
        answers.append(answer)
        came.set()

    with trio.move_on_after(timeout_s):
        channel = await connections.connect(bookie_id)
        channel.ask(AdminRequest(next(channel.request_ids), command), on_answer, None, timeout_s)
        await came.wait()
    # Also one that came as the time ran out: it says more than a timeout.
    for answer in answers:
        if isinstance(answer, BookieError):
            raise answer
        return _read(bookie_id, command, answer)
    advice = "it hangs, or is very busy" if command is AdminCommand.STATISTICS else "it may be under way there"
    problem = f"no answer to {_said(command)} within {timeout_s:g} s: {advice}"
    raise BookieUnreachableError(bookie_id, problem)


def _read(bookie_id: str, command: AdminCommand, answer: Response) -> dict[str, Any]:
    if answer.status is Status.TOO_BUSY:
        raise BookieTooBusyError(bookie_id, f"{_said(command)}: {answer.detail}")
    if answer.status is Status.UNAUTHORIZED:
        problem = answer.detail or "this client may not ask for that: use the credentials of an administrator"
        raise AdministrationError(bookie_id, f"{_said(command)}: {problem}")
    if answer.status is not Status.OK:
        problem = answer.detail or f"it answered {answer.status.name}"
        raise AdministrationError(bookie_id, f"{_said(command)}: {problem}")
    try:
        found = json.loads(answer.detail)
    except (ValueError, RecursionError) as error:
        raise _nonsense(bookie_id, f"{_said(command)}: its answer is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise _nonsense(bookie_id, f"{_said(command)}: its answer is not a JSON object")
    return found


def _nonsense(bookie_id: str, problem: str) -> AdministrationError:
    return AdministrationError(bookie_id, f"{problem}; use the version of replog that the bookie runs")


def _damage(ledger_id: int, stamp: int, first_entry_id: int, last_entry_id: int, description: str) -> Damage:
    numbers = ledger_id, stamp, first_entry_id, last_entry_id
    if any(type(number) is not int for number in numbers) or not isinstance(description, str):
        raise TypeError(f"damage of {numbers!r}")
    return Damage(*numbers, description)


def _said(command: AdminCommand) -> str:
    return command.name.lower().replace("_", " ")


async def remote_bookies(membership: Membership, connections: Connections) -> list[RemoteBookie]:
    """Returns all announced bookies, sorted by id."""
    announced = await membership.announced()
    return [RemoteBookie(connections, bookie_id, address) for bookie_id, address in announced.items()]
