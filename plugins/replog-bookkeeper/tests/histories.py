"""Histories of one ledger each, in which Java's client and this one write, fence, recover, close and read it, while bookies
are killed and stopped. Each follows from its seed. At its end both kinds of readers must agree on the last entry and on every
byte, and no confirmed entry may be missing. Some of the bookies may be replog's.

    python plugins/replog-bookkeeper/tests/histories.py --count 200 --seed 1 --python-bookies 3
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import attrs
import trio

if __name__ == "__main__":  # pytest has done this otherwise
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3])]

import java_bookies
from java_bookies import Cluster, Driver, JavaError, digest_of, payload

import replog
import replog_bookkeeper
from replog.client.ledger_writer import LedgerWriter
from replog.config.client import ClientTuning
from replog.errors import EntryUnreadableError, FencedError, NotEnoughBookiesError, RecoveryUndecidedError, ReplogError
from replog_bookkeeper import LedgerDigest

BOOKIES = 5
_QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (3, 3, 3), (4, 3, 2), (5, 3, 2), (2, 2, 1), (1, 1, 1))
_DIGESTS = {
    "CRC32": LedgerDigest.CRC32,
    "CRC32C": LedgerDigest.CRC32C,
    "MAC": LedgerDigest.HMAC,
    "DUMMY": LedgerDigest.DUMMY,
}
_SIZES = (0, 1, 100, 100, 1000, 1000, 20_000, 1 << 20)
_FLUSH_MS = 20_000
_ROUND_S = 180.0
_ATTEMPTS, _PAUSE_S = 60, 0.5  # Java's client hears late of a bookie that is back
_NOT_ENOUGH_BOOKIES = -6  # of Java's client
Made = TypeVar("Made")
_OPTIONS = ClientTuning(
    add_timeout_s=3.0,
    read_timeout_s=3.0,
    takeover_timeout_s=15.0,
    recovery_timeout_s=15.0,
    connect_timeout_s=3.0,
    bookie_retry_after_s=0.5,
)


class Diverged(AssertionError):
    """The two kinds disagree, or an entry is gone."""


@attrs.define
class Round:
    """One history: what was chosen, and what became of it."""

    seed: int
    random: random.Random
    quorum: tuple[int, int, int]
    digest: str
    password: bytes
    writer: str  # "java" or "python"
    wire: str  # of a Java writer
    chosen_id: int | None
    versions: tuple[int, int]  # of the protocol, of Python's writer and of its reader
    ledger_id: int = -1
    sizes: list[int] = attrs.Factory(list)
    confirmed: int = 0  # entries, from the first one on
    steps: list[str] = attrs.Factory(list)
    recoverers: set[str] = attrs.Factory(set)

    def note(self, *words: object) -> None:
        self.steps.append(" ".join(map(str, words)))

    @property
    def hex_password(self) -> str:
        return self.password.hex() or "-"

    def expected(self, count: int) -> list[bytes]:
        return [payload(self.seed, place, size) for place, size in enumerate(self.sizes[:count])]


class Histories:
    """Runs histories against one cluster."""

    def __init__(self, cluster: Cluster, drivers: tuple[Driver, Driver]) -> None:
        self._cluster = cluster
        self._writing, self._other = drivers  # one for the writer, one for readers and recoverers
        self._clients = 0
        self._above = (1 << 31) - 4
        self.outcomes: Counter[str] = Counter()
        self.last: Round | None = None

    async def run(self, seed: int) -> Round:
        """One history. Raises `Diverged`."""
        chance = random.Random(seed)
        is_chosen = chance.random() < 0.15
        made = Round(
            seed,
            chance,
            chance.choice(_QUORUMS),
            chance.choice(sorted(_DIGESTS)),
            chance.choice((b"", b"", b"secret", bytes(range(64)))),
            chance.choice(("java", "python")),
            chance.choice(("v2", "v3")),
            self._above if is_chosen else None,
            # By chance of their own: histories of these seeds were run before there was a choice.
            random.Random(f"versions of {seed}").choice(((3, 3), (3, 2), (2, 3), (2, 2))),
        )
        self.last = made
        self._above += is_chosen
        try:
            with trio.fail_after(_ROUND_S):
                writing_version, other_version = made.versions
                async with self._client(writing_version) as writing, self._client(other_version) as other:
                    await (self._java(made, other) if made.writer == "java" else self._python(made, writing, other))
                    await self._judge(made, other)
        finally:
            await trio.to_thread.run_sync(self._cluster.heal)
        return made

    @asynccontextmanager
    async def _client(self, version: int) -> AsyncIterator[replog_bookkeeper.Client]:
        async with replog_bookkeeper.connect(self._cluster.uri, options=_OPTIONS, wire_version=version) as client:
            yield client

    # -- disturbances -----------------------------------------------------------------------------------------------

    async def _disturb(self, made: Round) -> None:
        """Kills, stops or heals bookies, or does nothing."""
        what = made.random.choices(("nothing", "kill", "freeze", "heal"), (10, 5, 1, 2))[0]
        victim = made.random.choice(self._cluster.bookies)
        if what == "kill" and sum(each.server.is_running for each in self._cluster.bookies) > BOOKIES - 2:
            made.note("kill", victim.bookie_id)
            await trio.to_thread.run_sync(self._cluster.kill_one, victim)
        elif what == "freeze" and victim.server.is_running and not victim.server.is_frozen:
            made.note("freeze", victim.bookie_id)
            await trio.to_thread.run_sync(victim.server.freeze)
        elif what == "heal":
            made.note("heal")
            await trio.to_thread.run_sync(self._cluster.heal)

    async def _persist(self, made: Round, what: str, recover: Callable[[], Awaitable[object]]) -> None:
        """Recovers; a recovery that lacks bookies is tried again when all are back."""
        for _ in range(_ATTEMPTS):
            try:
                found = await recover()
                made.note(what, "ends with", found)
                return
            except (JavaError, RecoveryUndecidedError, NotEnoughBookiesError, ReplogError) as error:
                made.note(what, "fails:", str(error)[:150])
                self.outcomes[f"{what} is tried again"] += 1
                await trio.to_thread.run_sync(self._cluster.heal)
                await trio.sleep(_PAUSE_S)
        raise Diverged(f"{what} does not end")

    async def _recover(self, made: Round, other: replog_bookkeeper.Client, kinds: tuple[str, ...]) -> None:
        async def by_java() -> object:
            words = ("open", "other", "recovered", made.ledger_id, made.digest, made.hex_password, "recover")
            return await trio.to_thread.run_sync(lambda: self._other(*words))

        async def by_python() -> object:
            return (await other.recover_ledger(made.ledger_id, password=made.password)).last_entry_id

        made.recoverers |= set(kinds)
        async with trio.open_nursery() as nursery:
            for kind in kinds:
                nursery.start_soon(self._persist, made, f"recovery by {kind}", by_java if kind == "java" else by_python)
            if made.random.random() < 0.15:
                await trio.sleep(made.random.random() * 0.05)
                victim = made.random.choice(self._cluster.bookies)
                made.note("kill", victim.bookie_id, "during the recovery")
                await trio.to_thread.run_sync(self._cluster.kill_one, victim)
                await trio.to_thread.run_sync(self._cluster.heal)  # right after the fence

    def _kinds(self, made: Round) -> tuple[str, ...]:
        return made.random.choice((("java",), ("python",), ("java", "python")))

    # -- a writer of each kind --------------------------------------------------------------------------------------

    async def _java(self, made: Round, other: replog_bookkeeper.Client) -> None:
        chance = made.random
        call = _caller(self._writing)
        self._clients += 1
        name = f"writer-{self._clients}"
        await call("client", name, made.wire)
        chosen = () if made.chosen_id is None else (made.chosen_id,)
        words = ("create", name, "own", *made.quorum, made.digest, made.hex_password, *chosen)
        (found,) = await _registered(lambda: call(*words))
        made.ledger_id = int(found)
        made.note("java", made.wire, "creates", made.ledger_id, made.quorum, made.digest)
        for _ in range(chance.randint(0, 4)):
            count, size = self._some(made)
            made.sizes += [size] * count
            await call("append", "own", count, size, made.seed)
            await self._disturb(made)
            if chance.random() < 0.7:
                confirmed, code = await call("flush", "own", _FLUSH_MS)
                made.confirmed = int(confirmed)
                made.note("flush", confirmed, code)
        ending = chance.choice(("close", "crash", "live", "race"))
        made.note("ending:", ending)
        self.outcomes[f"java {ending}"] += 1
        if ending == "close":
            await self._java_closes(made, call)
        elif ending == "crash":
            made.confirmed = int((await call("flush", "own", 0))[0])
            await call("crash", name)
        elif ending == "race":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._java_closes, made, call)
                nursery.start_soon(self._recover, made, other, ("python",))
        # A closed ledger stays as it is; one that is open is recovered, a live writer of it fenced.
        await self._recover(made, other, self._kinds(made))
        if ending == "live":
            made.confirmed = max(made.confirmed, int((await call("flush", "own", _FLUSH_MS))[0]))
            before = len(made.sizes)
            await call("append", "own", 1, 1, made.seed)
            confirmed, code = await call("flush", "own", _FLUSH_MS)
            if int(confirmed) > before:
                raise Diverged(f"a fenced Java writer confirmed entry {before}: {code}")
        if ending != "crash":
            await call("crash", name)

    async def _java_closes(self, made: Round, call: Callable[..., Awaitable[list[str]]]) -> None:
        try:
            await call("flush", "own", _FLUSH_MS)
            await call("close", "own")
        except JavaError as error:
            made.note("java's close fails:", error.code)
        # What it had confirmed before, and while it closed.
        made.confirmed = max(made.confirmed, int((await call("flush", "own", 0))[0]))

    async def _python(self, made: Round, writing: replog_bookkeeper.Client, other: replog_bookkeeper.Client) -> None:
        chance = made.random
        ending = chance.choice(("close", "crash", "live", "race"))
        self.outcomes[f"python {ending}"] += 1
        async with AsyncExitStack() as stack:
            stack.push_async_exit(_swallow)  # what leaving the writer's context raises
            options: dict[str, Any] = {"quorum": replog.Quorum(*made.quorum), "digest": _DIGESTS[made.digest]}
            options |= {"password": made.password, "ledger_id": made.chosen_id}
            writer = await _registered(lambda: stack.enter_async_context(writing.create_ledger(**options)))
            made.ledger_id = writer.ledger_id
            made.note("python", made.versions, "creates", made.ledger_id, made.quorum, made.digest)
            try:
                for _ in range(chance.randint(0, 4)):
                    count, size = self._some(made)
                    for _ in range(count):
                        data = payload(made.seed, len(made.sizes), size)
                        made.sizes.append(size)
                        await writer.push(data)
                    await self._disturb(made)
                    if chance.random() < 0.7:
                        await writer.flush()
            except ReplogError as error:
                made.note("python's writer fails:", str(error)[:150])
            made.note("confirmed", writer.last_add_confirmed, "ending:", ending)
            if ending == "close":
                await self._python_closes(made, writer)
            elif ending == "crash":
                writer._entries.leave()
            elif ending == "race":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._python_closes, made, writer)
                    nursery.start_soon(self._recover, made, other, ("java",))
            await self._recover(made, other, self._kinds(made))
            made.confirmed = writer.last_add_confirmed + 1
            if ending == "live":
                await self._python_is_fenced(made, writer)
            writer._entries.leave()

    async def _python_is_fenced(self, made: Round, writer: LedgerWriter) -> None:
        try:
            with trio.move_on_after(40):
                await writer.append(b"behind the fence")
        except ReplogError as error:
            made.note("python's writer is told:", str(error)[:100])
            return
        raise Diverged(f"a fenced writer confirmed entry {writer.last_add_confirmed}")

    async def _python_closes(self, made: Round, writer: LedgerWriter) -> None:
        try:
            await writer.aclose()
        except ReplogError as error:
            made.note("python's close fails:", str(error)[:150])

    def _some(self, made: Round) -> tuple[int, int]:
        size = made.random.choice(_SIZES)
        return made.random.randint(1, 3 if size > 100_000 else 40), size

    async def _read(self, made: Round, other: replog_bookkeeper.Client) -> list[bytes]:
        """All entries, by this client. While a bookie with the only copy is slow to be connected to, it says: retry (D2)."""
        found: list[bytes] = []
        async with other.open_ledger(made.ledger_id, password=made.password) as reader:
            batches = reader.batches()
            while True:
                try:
                    async for batch in batches:
                        found += batch.payloads()
                    return found
                except EntryUnreadableError as error:
                    made.note("python reads again:", error)
                    self.outcomes["python reads again"] += 1
                    await trio.sleep(_PAUSE_S)

    # -- the judgement ----------------------------------------------------------------------------------------------

    async def _judge(self, made: Round, other: replog_bookkeeper.Client) -> None:
        await trio.to_thread.run_sync(self._cluster.heal)
        call = _caller(self._other)
        state, last_text, length, _ = await call("state", "other", made.ledger_id)
        metadata, last = await other.ledger_metadata(made.ledger_id), int(last_text)
        if state != "CLOSED" or metadata.last_entry_id != last:
            raise Diverged(f"java's record: {state} {last}; python's: {metadata.state} {metadata.last_entry_id}")
        if not made.confirmed - 1 <= last < len(made.sizes):
            raise Diverged(f"{made.confirmed} of {len(made.sizes)} entries were confirmed, and the last is {last}")
        expected = made.expected(last + 1)
        size_bytes = sum(map(len, expected))
        if int(length) != size_bytes:
            # Java's rule: its recovery takes the length from the last entry of the bookie that proves the last add confirmed, and
            # keeps it if the entries between are absent. So it may count entries that it cut off. No reader depends on it.
            if "java" not in made.recoverers or int(length) < size_bytes:
                raise Diverged(f"the record says {length} bytes of payload; there are {size_bytes}")
            self.outcomes["java's length counts entries that were cut off"] += 1
        found = await self._read(made, other)
        await call("open", "other", "read", made.ledger_id, made.digest, made.hex_password, "recover")
        java_last, java_length, _ = await call("last", "read")
        if (int(java_last), java_length) != (last, length):
            raise Diverged(f"java's reader: last {java_last}, length {java_length}; the record: {last}, {length}")
        if found != expected:
            raise Diverged(f"python reads {len(found)} entries of {len(expected)}; {_differences(found, expected)}")
        if last >= 0 and await call("read", "read", 0, last) != [digest_of(expected)]:
            raise Diverged("java reads other bytes")
        await other.delete_ledger(made.ledger_id)


def _differences(found: Sequence[bytes], expected: Sequence[bytes]) -> str:
    """Where entries have other bytes, and whether these are zeros: a torn write, which the digest DUMMY does not show."""
    said = []
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=False)):
        if ours != theirs:
            at = next((place for place, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), -1)
            zeros = len(ours) - len(ours.rstrip(b"\0"))
            said.append(
                f"entry {number} of {len(theirs)} bytes has {len(ours)}, differs from {at} on, ends with {zeros} zeros"
            )
    return "; ".join(said)


async def _registered(create: Callable[[], Awaitable[Made]]) -> Made:
    """Creates a ledger. A client hears of a bookie that has just come back a moment later than it serves."""
    for attempt in range(_ATTEMPTS):
        try:
            return await create()
        except NotEnoughBookiesError:
            if attempt == _ATTEMPTS - 1:
                raise
        except JavaError as error:
            if error.code != _NOT_ENOUGH_BOOKIES or attempt == _ATTEMPTS - 1:
                raise
        await trio.sleep(_PAUSE_S)
    raise AssertionError("unreachable")


def _caller(driver: Driver) -> Callable[..., Awaitable[list[str]]]:
    """Calls this driver from trio."""

    async def call(*words: object) -> list[str]:
        return await trio.to_thread.run_sync(lambda: driver(*words))

    return call


async def _swallow(kind: object, error: BaseException | None, traceback: object) -> bool:
    return isinstance(error, FencedError)


def run_histories(cluster: Cluster, seeds: range, tell: Callable[[str], None] = lambda _line: None) -> Counter[str]:
    """Runs these histories; returns what happened in them. Raises `Diverged` with the steps of the one that did."""
    logs = cluster.directory
    drivers = (
        Driver(cluster.java, cluster.uri, logs / "writing.log"),
        Driver(cluster.java, cluster.uri, logs / "other.log"),
    )
    drivers[1]("client", "other", "v3")
    histories = Histories(cluster, drivers)

    async def run_all() -> None:
        for seed in seeds:
            began_s = time.monotonic()
            try:
                made = await histories.run(seed)
            except BaseException as error:
                error.add_note(f"the history that failed: {histories.last}")
                raise
            tell(f"{seed}: {time.monotonic() - began_s:.1f} s, {len(made.sizes)} entries: {'; '.join(made.steps)}")

    try:
        trio.run(run_all)
    finally:
        for each in drivers:
            each.kill()
    return histories.outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python-bookies", type=int, default=0, help=f"so many of the {BOOKIES}")
    given = parser.parse_args()
    of_python = given.python_bookies
    with tempfile.TemporaryDirectory(prefix="histories-") as directory:
        with java_bookies.cluster(Path(directory), BOOKIES - of_python, python_bookies=of_python) as cluster:
            outcomes = run_histories(
                cluster, range(given.seed, given.seed + given.count), lambda line: print(line, flush=True)
            )
    print(f"{given.count} histories, 0 divergent: {dict(sorted(outcomes.items()))}")


if __name__ == "__main__":
    main()
