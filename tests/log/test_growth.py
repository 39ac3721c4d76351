"""The cost of a log for its metastore, counted: the same for a thousand ledgers as for ten thousand. No clock is asked.

The table is in docs/reference/formats.md; the last test compares. All lengths in the long lane, else two."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import trio

import replog
from replog.abc import Metastore, Versioned
from replog.errors import FencedError
from replog.metastores.memory import MemoryMetastore
from replog.protocol.model import LogMetadata
from replog.records.encoding import encode
from replog.records.logs import decode_log
from replog.records.paths import log_key_path, log_page_key_path

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "formats.md"
LENGTHS, LENGTHS_LONG = (1_000, 10_000), (10, 100, 1_000, 10_000)
FAKE = 1_000_000  # ledger ids from here on do not exist: nothing reads them
HEADER = "| segments | open to write | open to read from the beginning | roll | trim one segment |"


class CountingMetastore(MemoryMetastore):
    """Counts the calls about keys with this prefix, and the bytes of the values that go either way."""

    def __init__(self, prefix: str = "logs/") -> None:
        super().__init__()
        self.prefix = prefix
        self.calls = 0
        self.bytes = 0

    def _count(self, key: str, size_bytes: int) -> None:
        if key.startswith(self.prefix):
            self.calls += 1
            self.bytes += size_bytes

    async def create(self, key: str, value: bytes) -> int:
        self._count(key, len(value))
        return await super().create(key, value)

    async def get(self, key: str) -> Versioned:
        self._count(key, 0)
        found = await super().get(key)
        self.bytes += len(found.value) if key.startswith(self.prefix) else 0
        return found

    async def put(self, key: str, value: bytes, expected: int) -> int:
        self._count(key, len(value))
        return await super().put(key, value, expected)

    async def delete(self, key: str, expected: int | None = None) -> None:
        self._count(key, 0)
        await super().delete(key, expected)

    async def children(self, key: str) -> list[str]:
        words = await super().children(key)
        self._count(key, sum(map(len, words)))
        return words


class Cost:
    """Calls and bytes of some operations of a kind, on average."""

    def __init__(self) -> None:
        self.calls = 0.0
        self.bytes = 0.0

    def __str__(self) -> str:
        return f"{self.calls:.1f} calls, {self.bytes / 1000:.1f} kB".replace(".0 calls", " calls")


@contextmanager
def counted(metastore: CountingMetastore, operations: int = 1) -> Iterator[Cost]:
    calls, size_bytes, cost = metastore.calls, metastore.bytes, Cost()
    yield cost
    cost.calls, cost.bytes = (metastore.calls - calls) / operations, (metastore.bytes - size_bytes) / operations


async def make_log(client: replog.Client, metastore: Metastore, length: int) -> None:
    """A log of so many segments; only the first ledger and the last two exist, with an entry each."""
    real = []
    for _ in range(3):
        async with client.create_ledger() as writer:
            await writer.append(b"entry")
        real.append(writer.ledger_id)
    log = LogMetadata("log", token="0" * 32 + ".1", created_at_ms=1_763_500_000_000)
    ledger_ids = [real[0], *range(FAKE, FAKE + length - 3), *real[1:]]
    for ledger_id in ledger_ids:
        pages, log = log.split()
        for page in pages:
            await metastore.create(log_page_key_path("log", page.number), encode(page))
        log = log.with_ledger(ledger_id, 1_763_500_000_000).open_from(log.next_segment_number)
    await metastore.create(log_key_path("log"), encode(log))


async def costs_of(length: int, directory: Path) -> list[Cost]:
    metastore = CountingMetastore()
    async with replog.embed(directory, storage="memory", metastore=metastore) as client:
        await make_log(client, metastore, length)
        with counted(metastore) as reading:
            async with client.read_log("log") as reader:
                assert (await reader.receive()).data == b"entry"
        writer = client.write_log("log")
        with counted(metastore) as opening:
            log = await writer.__aenter__()
            await log._finished.wait()  # what it does beside appending
        rolls = 200  # as many as two pages have: some of them write one
        with counted(metastore, rolls) as rolling:
            for _ in range(rolls):
                await log.roll()
        assert log.segment == length + 1 + rolls
        # A leader looks at changes of others, several at once (L10): how often, depends on which task comes first.
        await writer.__aexit__(None, None, None)
        with counted(metastore, 200) as trimming:
            for number in range(2, 202):
                assert await client.trim_log("log", before=f"{number}:0") == replog.Position(number, 0)
        segments = await client.log_segments("log")
        assert [segment.number for segment in segments] == list(range(201, length + 202))
        assert bool(await metastore.children("logs/log/pages")) == (length > 200)
        head = (await metastore.get("logs/log")).value
        assert len(head) < 12_000, "the record outgrows its bound"
        assert decode_log("logs/log", head).segment_count == length + 1
    return [opening, reading, rolling, trimming]


async def takeover_costs(length: int, kind: str, directory: Path, takeovers: int = 3) -> Cost:
    """The average cost of a takeover. Each leader appends an entry, and the next one finds it alive."""
    metastore = CountingMetastore(prefix="")
    async with replog.embed(directory, storage="memory", metastore=metastore) as client:
        await make_log(client, metastore, length)

        async def take_over(earlier: AsyncExitStack) -> AsyncExitStack:
            stack = AsyncExitStack()
            leader = await stack.enter_async_context(client.write_log("log", options=replog.LogOptions(ledgers=kind)))
            await leader.append(b"entry")
            await leader._finished.wait()
            with suppress(FencedError):
                await earlier.aclose()
            return stack

        leading = await take_over(AsyncExitStack())
        with counted(metastore, takeovers) as cost:
            for _ in range(takeovers):
                leading = await take_over(leading)
        await leading.aclose()
        added = 1 + takeovers if kind == "bounded" else 1
        assert (await client.log_metadata("log")).segment_count == length + added
    return cost


@pytest.mark.parametrize("kind", ["bounded", "unbounded"])
async def test_takeover_costs_no_more_in_a_longer_log(kind: str, tmp_path: Path) -> None:
    few = await takeover_costs(50, kind, tmp_path / "few")
    many = await takeover_costs(2_000, kind, tmp_path / "many")
    assert many.calls == few.calls
    assert many.bytes - few.bytes <= 10_000, "the log's record names up to 200 segments, and never more"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, is_long: bool) -> dict[int, list[Cost]]:
    directory = tmp_path_factory.mktemp("growth")
    lengths = LENGTHS_LONG if is_long else LENGTHS
    return {length: trio.run(costs_of, length, directory / str(length)) for length in lengths}


@pytest.mark.sized
@pytest.mark.slow
def test_no_operation_costs_more_in_a_longer_log(table: dict[int, list[Cost]]) -> None:
    for thousand, many in zip(table[1_000], table[10_000], strict=True):
        assert many.calls <= thousand.calls
        assert many.bytes <= 1.1 * thousand.bytes, "more than the digits of larger numbers"
    for costs in table.values():
        assert all(cost.bytes <= 30_000 for cost in costs)


def lines(table: dict[int, list[Cost]]) -> Sequence[str]:
    return [f"| {length} | " + " | ".join(map(str, costs)) + " |" for length, costs in table.items()]


@pytest.mark.sized
@pytest.mark.slow
def test_table_in_the_docs_matches_the_counts(table: dict[int, list[Cost]]) -> None:
    written = DOCUMENT.read_text(encoding="utf-8").splitlines()
    expected = lines(table)
    start = written.index(HEADER) if HEADER in written else 0
    head, _, *found = itertools.takewhile(lambda line: line.startswith("|"), written[start:])
    assert head == HEADER
    assert len(found) == len(LENGTHS_LONG)
    assert found[-len(expected) :] == expected, "write this:\n" + "\n".join(expected)
