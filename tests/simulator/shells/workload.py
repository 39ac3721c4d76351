"""The users of a run's logs and ledgers: leaders, followers, readers, writers of plain ledgers, and clients that
recover these.

Each acts in a process of its own, which ends as is drawn: it leaves, is cancelled, is killed, or is stopped for a while and
goes on where it stood, maybe deposed meanwhile. Then another one takes its part.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import trio

from replog.api import Client
from replog.errors import FencedError, TrimmedError, UnauthorizedError
from replog.log.log_options import LogOptions
from replog.log.log_reader import LogReader
from replog.log.log_writer import LogWriter
from replog.protocol.digest import DigestType
from replog.protocol.model import Position
from replog.protocol.quorum import Quorum
from replog.testing.simulating.processes import Clients
from tests.simulator.shells.oracle import NAMED, Copies, Leader, LedgerOracle, LogOracle, leaves
from tests.simulator.shells.short_lived import ShortLived
from tests.simulator.shells.world import PASSWORD, Act, JudgedWorld
from tests.simulator.shells.write_quorums import WriteQuorums

LOG = "log"

LEDGER_QUORUMS = [Quorum(5, 3, 2), Quorum(4, 2, 2), Quorum(5, 2, 1), Quorum(3, 3, 2)]
_ENDINGS = ("left", "left", "left", "cancelled", "killed", "killed", "stopped", "stopped")


class Workload:
    """All actors of one run, and what their oracles know."""

    def __init__(
        self,
        world: JudgedWorld,
        clients: Clients,
        copies: Copies,
        quorums: Sequence[Quorum],
        write_quorums: WriteQuorums,
    ) -> None:
        self.world = world
        self._write_quorums = write_quorums
        self.copies = copies
        self.log = LogOracle(world)
        self.ledgers: list[LedgerOracle] = []
        self.archive = self.log.chain()  # of the reader that is never trimmed away
        self.is_stopping = False
        self.unclean: dict[str, None] = {}  # processes that may have left a ledger behind
        self.trims_failed = False
        self.short_lived = ShortLived(world)
        self._clients = clients
        self._quorums = quorums
        self._tasks = 0
        self._parts = 0

    # -- processes ----------------------------------------

    async def play(self, role: str, act: Act) -> None:
        """Plays a part, in one process after the other, until the run stops."""
        self._parts += 1
        chance = self.world.stream(f"part {self._parts}")
        while not self.is_stopping:
            await trio.sleep(chance.random() * 1.5)
            if not self.is_stopping:
                await self._live(role, act, chance, chance.choice(_ENDINGS))

    async def _live(self, role: str, act: Act, chance: random.Random, ending: str) -> None:
        is_clean = False
        process = ""
        try:
            with trio.CancelScope() as scope:
                async with self._clients.client(role) as (client, process), trio.open_nursery() as nursery:
                    self.world.tell(process, f"begins; to be {ending}")
                    self._clients.scopes[process] = scope
                    nursery.start_soon(self._meet_end, ending, process, scope, chance)
                    await act(client, process)
                    is_clean = True
                    nursery.cancel_scope.cancel()
        except* NAMED as group:
            is_clean = False
            for error in leaves(group):
                self._failed(role, process, error)
        if not is_clean:
            self.unclean[process] = None

    def _failed(self, role: str, process: str, error: BaseException) -> None:
        self.world.tell(process, f"fails with {type(error).__name__}: {error}")
        self.world.count(f"{role}: {type(error).__name__}")
        if process in self.world.dead:
            return
        if isinstance(error, trio.ClosedResourceError):
            self.world.count("closed")

    async def _meet_end(self, ending: str, process: str, scope: trio.CancelScope, chance: random.Random) -> None:
        await trio.sleep(0.2 + chance.random() * 3)
        if ending == "stopped":
            self.world.pause(process)
            await trio.sleep(0.2 + chance.random() * 3)
            self._clients.network.resume(process)
            self.world.count("process stopped and went on")
        elif ending != "left":
            if ending == "killed":
                self._clients.kill(process)
            else:
                scope.cancel()
            self.world.count(f"process {ending}")

    # -- leading ----------------------------------------

    async def lead(self, client: Client, process: str) -> None:
        """Takes the log over, or waits to be elected; appends in every way there is for a while."""
        chance = self.world.stream("leading")
        custom = {"process": process}
        begin = (
            client.write_log(LOG, options=LogOptions(custom=custom)) if chance.random() < 0.6 else client.lead_log(LOG)
        )
        if chance.random() < 0.1:
            await trio.sleep(0.1)
        async with begin as log:
            self._write_quorums.check_log_full(LOG)
            leader = self.log.serving(log.segment)
            self.world.tell(process, f"serves from segment {log.segment}")
            self.world.count("leader serves")
            until_s = self.world.now_s + 0.2 + chance.random() * 4
            try:
                async with trio.open_nursery() as nursery:
                    for _ in range(chance.randint(1, 3)):
                        self._tasks += 1
                        nursery.start_soon(self._append, log, leader, b"%d" % self._tasks, until_s)
                    nursery.start_soon(self._look_after, client, log, until_s)
            except* FencedError:
                self.world.count("leader deposed")
                raise

    def _goes_on(self, until_s: float) -> bool:
        return not self.is_stopping and self.world.now_s < until_s

    async def _append(self, log: LogWriter, leader: Leader, task: bytes, until_s: float) -> None:
        chance = self.world.stream("appending")
        number = 0
        while self._goes_on(until_s):
            deposed = leader.is_deposed
            self.copies.segments[log.segment] = log.ledger_id
            way = chance.random()
            data = b"%s#%d" % (task, number)
            number += 1
            if way < 0.4:
                with self.world.cancelled_after(chance.choice((100, 100, 0.0, 0.004))) as scope:
                    position = await log.append(data)
                if not scope.cancelled_caught:
                    self._confirmed(leader, position, data, deposed)
            elif way < 0.5:
                more = [data, *(b"%s#%d" % (task, number + extra) for extra in range(chance.randint(0, 20)))]
                number += len(more) - 1
                for position, each in zip(await log.extend(more), more, strict=True):
                    self._confirmed(leader, position, each, deposed)
            else:
                position = await log.push(data)
                leader.pushed(position, data)
                if chance.random() < 0.3:
                    await log.flush()
                    self._confirmed(leader, position, data, deposed)
            await trio.sleep(chance.choice((0, 0.003, 0.03, 0.2)))

    def _confirmed(self, leader: Leader, position: Position, data: bytes, deposed: bool) -> None:
        self.world.tell("log", f"confirmed {position} {data!r}")
        self.world.count("record confirmed")
        for each in leader.confirmed(position, data, called_when_deposed=deposed):
            self.copies.check_position(each)

    async def _look_after(self, client: Client, log: LogWriter, until_s: float) -> None:
        chance = self.world.stream("looking after")
        while self._goes_on(until_s):
            await trio.sleep(chance.random())
            what = chance.random()
            if what < 0.4:
                await log.roll()
                self._write_quorums.check_log_full(LOG)
            elif what < 0.6:
                await log.flush()
            elif self.archive:
                await self._trim(client)

    async def _trim(self, client: Client) -> None:
        is_done = False
        try:
            await client.trim_log(LOG, before=Position(self.archive[-1].segment, 0))
            is_done = True
            self.world.count("log trimmed")
        finally:
            self.trims_failed = self.trims_failed or not is_done  # then it may leave ledgers behind

    # -- reading ----------------------------------------

    async def follow(self, client: Client, process: str) -> None:
        """Follows the log from some place on, through cancelled waits."""
        await self._follow(client, self.log.chain(), self.world.stream("following"))

    async def archivist(self, client: Client, process: str) -> None:
        """Follows the log from its beginning, whatever happens: nobody trims what it has not read."""
        try:
            await self._follow(client, self.archive, self.world.stream("archive"))
        except* TrimmedError as group:
            self.world.violated("L3", f"more was trimmed than was asked for: {leaves(group)[0]}")
            raise

    async def _follow(self, client: Client, chain: list[Position], chance: random.Random) -> None:
        after = chain[-1] if chain else None
        try:
            with trio.move_on_after(0.5 + chance.random() * 5):
                async with client.read_log(LOG, after=after, follow=True) as reader:
                    in_batches = chance.random() < 0.3
                    while not self.is_stopping:
                        with self.world.cancelled_after(chance.choice((0.002, 0.005, 0.05, 1.0))):
                            await self._receive(reader, chain, in_batches)
        except* NAMED as group:
            for error in leaves(group):
                self.log.reading_failed(error)
            raise

    async def _receive(self, reader: LogReader, chain: list[Position], in_batches: bool) -> None:
        records = await reader.receive_batch() or () if in_batches else (await reader.receive(),)
        for record in records:
            self.world.count("record followed")
            self.log.read(chain, record.position, record.data)

    async def read(self, client: Client, process: str) -> None:
        """Reads the log as far as is known."""
        chain = self.log.chain()
        try:
            async with client.read_log(LOG) as reader:
                async for record in reader:
                    self.log.read(chain, record.position, record.data)
        except NAMED as error:
            self.log.reading_failed(error)
            raise

    # -- plain ledgers ----------------------------------------

    async def write_ledger(self, client: Client, process: str) -> None:
        """Writes a ledger of its own, most of them striped."""
        chance = self.world.stream("ledgers")
        quorum = chance.choice(self._quorums)
        digest_type = chance.choice(list(DigestType))
        self.world.count(f"digest {digest_type.name}")
        async with client.create_ledger(
            quorum=quorum, password=PASSWORD, digest_type=digest_type, custom={"process": process}
        ) as writer:
            oracle = LedgerOracle(self.world, writer.ledger_id)
            self.copies.acks[writer.ledger_id] = quorum.ack
            self.ledgers.append(oracle)
            self.world.tell(process, f"writes ledger {writer.ledger_id} on {quorum}")
            until_s = self.world.now_s + chance.random() * 4
            while self._goes_on(until_s):
                count = chance.choice((1, 1, 1, 7))
                first = writer.last_add_pushed + 1
                data = [b"%d/%d" % (writer.ledger_id, first + each) for each in range(count)]
                oracle.pushed.update(enumerate(data, first))
                closed = oracle.last_entry_id is not None
                if count > 1:
                    for entry_id in await writer.extend(data):
                        self.copies.check(writer.ledger_id, entry_id)
                        oracle.confirm(entry_id, called_when_closed=closed)
                else:
                    with self.world.cancelled_after(chance.choice((100, 100, 0.003))):
                        entry_id = await writer.append(data[0])
                        self.copies.check(writer.ledger_id, entry_id)
                        oracle.confirm(entry_id, called_when_closed=closed)
                        self.world.count("entry confirmed")
                await trio.sleep(chance.choice((0, 0.03, 0.2)))
            await writer.aclose()
            assert writer.metadata.last_entry_id is not None
            self._write_quorums.check_full(writer.ledger_id)
            oracle.closed(writer.metadata.last_entry_id)

    async def recover_ledgers(self, client: Client, process: str) -> None:
        """Recovers some ledger, whoever writes it or recovers it too."""
        chance = self.world.stream("recovering")
        if self.ledgers:
            oracle = chance.choice(self.ledgers[-3:])
            metadata = await client.recover_ledger(oracle.ledger_id, password=PASSWORD)
            assert metadata.last_entry_id is not None
            self._write_quorums.check_full(oracle.ledger_id)
            oracle.closed(metadata.last_entry_id)
            self.world.count("ledger recovered by somebody")

    async def recover(self, ledger_id: int) -> None:
        """Somebody recovers this very ledger now."""
        oracle = next((each for each in self.ledgers if each.ledger_id == ledger_id), None)
        try:
            async with self._clients.client("heir") as (client, _):
                metadata = await client.recover_ledger(ledger_id, password=b"" if oracle is None else PASSWORD)
                assert metadata.last_entry_id is not None
                if oracle is not None:
                    oracle.closed(metadata.last_entry_id)
        except* NAMED as group:
            for error in leaves(group):
                self.world.count(f"heir: {type(error).__name__}")

    async def intrude(self, client: Client, process: str) -> None:
        """Tries to read, recover and delete a ledger without knowing its password (B7)."""
        if not self.ledgers:
            return
        ledger_id = self.world.stream("intruding").choice(self.ledgers[-3:]).ledger_id
        try:
            async with client.open_ledger(ledger_id, password=b"guessed"):
                self.world.violated("B7", f"ledger {ledger_id} was opened with a wrong password")
        except UnauthorizedError:
            self.world.count("a wrong password was refused")
        try:
            await client.recover_ledger(ledger_id, password=b"guessed")
            self.world.violated("B7", f"ledger {ledger_id} was recovered with a wrong password")
        except UnauthorizedError:
            self.world.count("a wrong password was refused")

    async def read_ledgers(self, client: Client, process: str) -> None:
        """Reads some ledger as far as is known, and looks for more now and then."""
        chance = self.world.stream("reading ledgers")
        if not self.ledgers:
            return
        oracle = chance.choice(self.ledgers[-3:])
        async with client.open_ledger(oracle.ledger_id, password=PASSWORD) as reader:
            for _ in range(3):
                async for entry in reader:
                    oracle.saw(entry.entry_id, entry.data)
                    self.world.count("entry read")
                await reader.refresh(chance.choice((0, 0.3)))
