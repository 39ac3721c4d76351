"""What an application may get wrong: each is a named error that says what to do, and nothing is lost by it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import replog
from replog.config import BookieOptions, ClientOptions
from replog.errors import ConfigError, NotEnoughBookiesError, ReplogError, UnauthorizedError
from tests.kit import cluster, read_ledger, read_log


@pytest.mark.parametrize(
    "numbers",
    [(0, 0, 0), (3, 4, 2), (3, 2, 3), (3, 3, 0), (2, 3, 1), (-1, -1, -1), (3.0, 3, 2), ("3", "3", "2"), (1, 1, True)],
)
def test_quorums_that_cannot_be(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="quorum"):
        replog.Quorum(*numbers)


async def test_a_quorum_larger_than_the_cluster_says_how_many_are_missing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(3) as world, world.client() as client:
        for context in (
            client.create_ledger(quorum=replog.Quorum(4, 3, 2)),
            client.write_log("log", quorum=replog.Quorum(9, 9, 9)),
        ):
            with pytest.raises(NotEnoughBookiesError, match="only 3") as caught:
                await context.__aenter__()
            assert caught.value.needed in (4, 9)
            assert len(caught.value.usable) == 3
        assert await client.ledgers() == []
        assert await client.logs() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"quorum": (3, 3, 2)},
        {"quorum": 3},
        {"password": "text"},
        {"password": None},
        {"digest_type": "crc32c"},
        {"digest_type": 1},
        {"custom": [("a", "b")]},
    ],
    ids=str,
)
async def test_arguments_of_a_wrong_type_are_refused_before_anything_is_made(
    wrong: dict[str, object], autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(3) as world, world.client() as client:
        calls = len(world.metastore.calls)
        for context in (
            client.create_ledger(**wrong),  # type: ignore[arg-type]
            client.write_log("log", **wrong),  # type: ignore[arg-type]
        ):
            with pytest.raises(ConfigError):
                await context.__aenter__()
        assert len(world.metastore.calls) == calls


@pytest.mark.parametrize("ledger_id", [-1, "1", 1.0, None, True, 1 << 63])
async def test_what_is_no_ledger_id(ledger_id: int, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client() as client:
        for verb in (
            lambda: client.open_ledger(ledger_id).__aenter__(),
            lambda: client.recover_ledger(ledger_id),
            lambda: client.delete_ledger(ledger_id),
        ):
            with pytest.raises(ConfigError, match="ledger id"):
                await verb()


async def test_a_wrong_password_is_refused_everywhere_and_harms_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(3) as world, world.client() as client, world.client() as other:
        async with client.write_log("log", password=b"right") as log:
            await log.append(b"0")
            for verb in (
                lambda: other.write_log("log", password=b"wrong").__aenter__(),
                lambda: other.delete_log("log", password=b"wrong"),
                lambda: other.recover_ledger(log.ledger_id, password=b"wrong"),
                lambda: other.open_ledger(log.ledger_id, password=b"wrong").__aenter__(),
                lambda: other.open_ledger(log.ledger_id).__aenter__(),
            ):
                with pytest.raises(UnauthorizedError):
                    await verb()
            await log.append(b"1")
        async with client.read_log("log", password=b"right") as reader:
            assert [record.data async for record in reader] == [b"0", b"1"]


@pytest.mark.parametrize(
    "options",
    [
        lambda: ClientOptions(in_flight_bytes_max=0),
        lambda: ClientOptions(batch_bytes_max=1 << 30),
        lambda: ClientOptions(in_flight_bytes_max=10, batch_bytes_max=20),
        lambda: ClientOptions(add_timeout_s=0),
        lambda: ClientOptions(add_timeout_s=float("nan")),
        lambda: ClientOptions(roll_entries=-1),
        lambda: BookieOptions(queue_bytes_max=1),
        lambda: BookieOptions(long_poll_max_s=-1),
    ],
)
def test_options_that_cannot_be(options: object) -> None:
    with pytest.raises(ConfigError):
        options()  # type: ignore[operator]


async def test_misuse_in_the_middle_of_work_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client() as client:
        async with client.write_log("log") as log, client.create_ledger() as writer:
            for number in range(10):
                await log.append(b"%d" % number)
                await writer.append(b"%d" % number)
                for wrong in ("text", None, 5, bytearray(3)):
                    for verb in (log.append, log.push, writer.append, writer.push):
                        with pytest.raises(TypeError):
                            await verb(wrong)  # type: ignore[arg-type]
                    with pytest.raises(TypeError):
                        log.push_nowait(wrong)  # type: ignore[arg-type]
                    with pytest.raises(TypeError):
                        await log.extend([b"good", wrong])  # type: ignore[list-item]
                with pytest.raises(replog.PayloadTooLargeError):
                    await log.append(bytes((16 << 20) + 1))
                with pytest.raises(replog.PositionError):
                    await client.trim_log("log", before="99:0")
        expected = [b"%d" % number for number in range(10)]
        assert await read_log(client) == expected
        assert await read_ledger(client, writer.ledger_id) == expected


async def test_using_a_client_that_was_left_ends_in_an_error(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world:
        async with world.client() as client:
            pass
        for verb in (
            lambda: client.create_ledger().__aenter__(),
            lambda: client.open_ledger(1).__aenter__(),
            lambda: client.recover_ledger(1),
            lambda: client.delete_ledger(1),
            lambda: client.ledgers(),
            lambda: client.write_log("log").__aenter__(),
            lambda: client.lead_log("log").__aenter__(),
            lambda: client.read_log("log").__aenter__(),
            lambda: client.trim_log("log", before="1:0"),
            lambda: client.delete_log("log"),
            lambda: client.logs(),
        ):
            with pytest.raises(trio.ClosedResourceError):
                await verb()


async def test_a_reader_that_outlives_its_client_ends_in_an_error(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world:
        async with world.client() as client:
            async with client.create_ledger() as writer:
                await writer.append(b"0")
            context = client.open_ledger(writer.ledger_id)
            reader = await context.__aenter__()
        with trio.fail_after(60), pytest.raises(ReplogError):
            await reader.read(0, 0)
        await context.__aexit__(None, None, None)


async def test_one_task_reading_while_another_closes_the_reader(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client() as client:
        async with client.write_log("log") as log, client.read_log("log", follow=True) as reader:
            await log.append(b"0")
            assert (await reader.receive()).data == b"0"

            async def close_soon() -> None:
                await trio.sleep(0.5)
                await reader.aclose()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(close_soon)
                with trio.fail_after(20):
                    try:
                        await reader.receive()
                    except trio.ClosedResourceError:
                        pass
                    else:
                        pytest.fail("it read from a closed reader")
