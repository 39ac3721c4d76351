"""One unbounded ledger that clients take over from each other, roll, trim, follow and repair, while its old fragments are in
index chunks: a record keeps two fragments here, and a chunk three items (M4).

- W2, T2: what was confirmed is in the end where it was confirmed, once. Nothing is confirmed that was appended after a later
  term was opened (L5).
- L6: a follower sees the entries in their order, without gap, through all terms, and everybody sees the same. Nobody trims
  what it has not read.
- M4: whenever a key changes, `NamedChunks` looks whether each fragment is named exactly once, and each named chunk exists. What
  no record names is collected in the end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import trio

from replog.api import Client
from replog.client.ledger_writer import LedgerWriter
from replog.errors import LedgerFinishedError, LedgerTrimmedError
from replog.testing.simulating.metastore import MetastoreServer
from tests.named_chunks import NamedChunks
from tests.simulator.shells.world import JudgedWorld

TERMS = "terms"  # the strategy


class Terms:
    """All that act on that ledger, and what is known of it."""

    def __init__(self, world: JudgedWorld, metastore: MetastoreServer, is_stopping: Callable[[], bool]) -> None:
        self.ledger_id: int | None = None
        self._world = world
        self._chunks = NamedChunks(metastore.inner, lambda problem: world.violated("M4", problem))
        self._is_stopping = is_stopping
        self._is_created = False  # or about to be
        self._open_term = 0  # the highest that a writer was told it has
        self._tasks = 0
        self._archived = 0  # entries, by the follower
        self._confirmed: dict[int, bytes] = {}
        self._read: dict[int, bytes] = {}

    # -- the storm --------------------------------------------------------------------------------------------------

    async def write(self, client: Client, process: str) -> None:
        """Creates the ledger or takes it over; appends and rolls for a while."""
        if self.ledger_id is not None:
            begin = client.take_over_ledger(self.ledger_id)
        elif not self._is_created:
            self._is_created = True
            begin = client.create_ledger(unbounded=True, custom={"process": process})
        else:
            return
        try:
            async with begin as writer:
                self.ledger_id = writer.ledger_id
                await self._write(writer, self._world.stream(f"terms of {process}"))
        finally:
            self._is_created = self.ledger_id is not None  # else it failed, and somebody else may try

    async def _write(self, writer: LedgerWriter, chance: random.Random) -> None:
        term = writer.metadata.term
        self._open_term = max(term, self._open_term)
        self._world.count(f"ledger opened in term {min(term, 8)}")
        self._tasks += 1
        task, number = self._tasks, 0
        until_s = self._world.now_s + 0.3 + chance.random() * 4
        while not self._is_stopping() and self._world.now_s < until_s:
            data = [b"%d#%d" % (task, number + each) for each in range(chance.choice((1, 1, 2)))]
            number += len(data)
            is_deposed = self._open_term > term
            for entry_id, each in zip(await writer.extend(data), data, strict=True):
                self._confirm(entry_id, each, is_deposed=is_deposed)
            if chance.random() < 0.8:
                await writer.roll()
                self._world.count("ledger rolled")
            await trio.sleep(chance.choice((0, 0.01, 0.05)))

    def _confirm(self, entry_id: int, data: bytes, *, is_deposed: bool) -> None:
        if is_deposed:
            self._world.violated("L5", f"{data!r} was appended in a term that had passed, and confirmed as {entry_id}")
        if self._confirmed.setdefault(entry_id, data) != data:
            self._world.violated(
                "W2", f"entry {entry_id} is confirmed as {self._confirmed[entry_id]!r} and as {data!r}"
            )

    async def follow(self, client: Client, process: str) -> None:
        """Follows the ledger from its beginning, in one process after the other."""
        if self.ledger_id is None:
            return
        chance = self._world.stream(f"following of {process}")
        try:
            with trio.move_on_after(0.5 + chance.random() * 3):
                async with client.open_ledger(self.ledger_id, first=self._archived, follow=True) as reader:
                    async for entry in reader:
                        if entry.entry_id != self._archived:
                            self._world.violated("L6", f"entry {entry.entry_id} follows {self._archived - 1}")
                        self._saw(entry.entry_id, entry.data)
                        self._archived = entry.entry_id + 1
                        self._world.count("entry of some term followed")
                        if chance.random() < 0.2:
                            await trio.sleep(0.1)  # so that its record gets old
        except* LedgerTrimmedError as group:
            self._world.violated("L3", f"more was trimmed than was asked for: {group.exceptions[0]}")

    def _saw(self, entry_id: int, data: bytes) -> None:
        if self._read.setdefault(entry_id, data) != data:
            self._world.violated("D3", f"entry {entry_id} was read as {self._read[entry_id]!r} and as {data!r}")

    async def look(self, client: Client, process: str) -> None:
        """Reads from some entry on, as far as is known."""
        if self.ledger_id is None:
            return
        chance = self._world.stream(f"looking of {process}")
        try:
            async with client.open_ledger(self.ledger_id, first=chance.randint(0, self._archived)) as reader:
                for _ in range(3):
                    async for entry in reader:
                        self._saw(entry.entry_id, entry.data)
                    await reader.refresh(chance.choice((0, 0.3)))
        except* LedgerTrimmedError:
            self._world.count("reader met a trimmed fragment")

    async def trim(self, client: Client, process: str) -> None:
        """Trims some of what the follower has read."""
        chance = self._world.stream(f"trimming of {process}")
        if self.ledger_id is not None and self._archived:
            await client.trim_ledger(self.ledger_id, before=chance.randint(self._archived // 2, self._archived))
            self._world.count("unbounded ledger trimmed")

    async def mend(self, client: Client, process: str) -> None:
        """Repairs the cluster, which collects chunks that nobody names; or only that."""
        if self._world.stream(f"mending of {process}").random() < 0.4:
            await client.admin.repair()
        else:
            for _ in range(3):
                await client._opened.ledgers.records.delete_unnamed_chunks()
                await trio.sleep(0.2)
        self._world.count("unnamed chunks collected")

    # -- the calm ---------------------------------------------------------------------------------------------------

    async def judge(self, client: Client) -> None:
        """Ends the ledger, reads all that it has, and looks at its chunks."""
        if self.ledger_id is None:
            return
        try:
            async with client.take_over_ledger(self.ledger_id) as writer:
                self._confirm(await writer.append(b"end#0"), b"end#0", is_deposed=False)
                await writer.finish()
        except LedgerFinishedError:
            self._world.count("unbounded ledger was closed by a recovery")
        whole = self._chunks.whole(self.ledger_id)
        first, last = whole.trim_to, whole.last_entry_id
        assert last is not None, "it is finished"
        async with client.open_ledger(self.ledger_id, first=first) as reader:
            final = {entry.entry_id: entry.data async for entry in reader}
        if sorted(final) != list(range(first, last + 1)):
            self._world.violated("D3", f"the ledger has entries {first} to {last}, and {sorted(final)} are read")
        for what, known in (("confirmed", self._confirmed), ("read", self._read)):
            for entry_id, data in known.items():
                if entry_id >= first and final.get(entry_id) != data:
                    self._world.violated("W2", f"{entry_id} was {what} as {data!r}, and is {final.get(entry_id)!r}")
        for data, count in Counter((self._read | final).values()).items():
            if count > 1:
                self._world.violated("W2", f"{data!r} is in the ledger {count} times")
        await client._opened.ledgers.records.delete_unnamed_chunks()
        if left := self._chunks.unnamed():
            self._world.violated("M4", f"nobody names or collects {left}")
        if self._chunks.created:
            self._world.count("fragments left the record for chunks")
