"""What an application may get wrong: each is a named error that says what to do, and nothing is lost by it."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import replog
import replog.blocking
from replog.config import BookieOptions, ClientOptions
from replog.config.bookie import BookieTuning
from replog.config.client import ClientTuning
from replog.errors import ConfigError, NotEnoughBookiesError, ReplogError, UnauthorizedError
from tests.kit import cluster, read_ledger, read_log


@pytest.mark.parametrize(
    "numbers",
    [
        (0, 0, 0),
        (257, 3, 2),
        (3, 4, 2),
        (3, 2, 3),
        (3, 3, 0),
        (2, 3, 1),
        (-1, -1, -1),
        (3.0, 3, 2),
        ("3", "3", "2"),
        (1, 1, True),
    ],
)
def test_impossible_quorums_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="quorum"):
        replog.Quorum(*numbers)


async def test_a_quorum_above_the_cluster_says_how_many_are_missing(
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
async def test_wrong_types_are_refused_before_anything_is_made(
    wrong: dict[str, object], autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(3) as world, world.client() as client:
        calls = len(world.metastore.calls)
        with pytest.raises(ConfigError):
            await client.create_ledger(**wrong).__aenter__()  # type: ignore[arg-type]
        of_logs = {name.removesuffix("_type"): value for name, value in wrong.items()}
        with pytest.raises(ConfigError):
            await client.write_log("log", options=replog.LogOptions(**of_logs)).__aenter__()  # type: ignore[arg-type]
        assert len(world.metastore.calls) == calls


async def test_wrong_retention_fences_no_writer(autojump_clock: trio.testing.MockClock) -> None:
    """It was used only once the log was taken over, and ended that writer with an AttributeError."""
    async with cluster(3) as world, world.client() as client, client.write_log("log") as log:
        for verb in (client.write_log, client.lead_log):
            with pytest.raises(ConfigError, match=r"retention=.* must be Retention\(...\)"):
                await verb("log", options=replog.LogOptions(retention=timedelta(days=7))).__aenter__()  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match=r"options=.* must be LogOptions\(...\)"):
                await verb("log", options=timedelta(days=7)).__aenter__()  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="password"):
                await verb("log", password=None).__aenter__()  # type: ignore[arg-type]
        await log.append(b"still its writer")


async def test_one_text_is_not_a_list_of_names(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Each letter was taken for a name: so a repair left out the bookie that it was to replace, and said that all was well."""
    async with cluster(3) as world, world.client() as client:
        (name, *_) = await client.admin.known_bookies()
        for verb in (
            lambda: client.admin.repair(away=name),
            lambda: client.admin.repair(name),
            lambda: client.admin.declare_lost(name),
            lambda: client.recover_ledger(1, lost=name),
            lambda: client.admin.backup(tmp_path, "log"),
            lambda: client.admin.restore(tmp_path, "log"),
        ):
            with pytest.raises(ConfigError, match="must be a list of texts"):
                await verb()


@pytest.mark.parametrize("directory", ["", "a\0b", ["a", ""]])
async def test_impossible_directories_are_refused(
    directory: str | list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty name was the working directory."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="must be a path"):
        async with replog.embed(directory):
            pass
    assert os.listdir(tmp_path) == []


def test_addresses_without_a_scheme_are_refused_with_a_hint() -> None:
    for listen in (("127.0.0.1:0",), "tcp:127.0.0.1:0", (7,)):
        with pytest.raises(ConfigError, match=r"listen: .*tcp:0\.0\.0\.0:3181"):
            BookieOptions(listen=listen)  # type: ignore[arg-type]


@pytest.mark.parametrize("ledger_id", [-1, "1", 1.0, None, True, 1 << 63])
async def test_invalid_ledger_id_is_refused(ledger_id: int, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client() as client:
        for verb in (
            lambda: client.open_ledger(ledger_id).__aenter__(),
            lambda: client.recover_ledger(ledger_id),
            lambda: client.delete_ledger(ledger_id),
        ):
            with pytest.raises(ConfigError, match="ledger id"):
                await verb()


async def test_a_wrong_password_is_refused_everywhere_harmlessly(
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
        lambda: ClientTuning(batch_bytes_max=1 << 30),
        lambda: ClientOptions(add_timeout_s=0),
        lambda: ClientOptions(add_timeout_s=float("nan")),
        lambda: ClientTuning(roll_entries=-1),
        lambda: BookieOptions(queue_bytes_max=1),
        lambda: BookieTuning(close_timeout_s=-1),
    ],
)
def test_impossible_options_are_refused(options: object) -> None:
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
                with pytest.raises(replog.errors.PayloadTooLargeError):
                    await log.append(bytes((16 << 20) + 1))
                with pytest.raises(replog.errors.PositionError):
                    await client.trim_log("log", before="99:0")
        expected = [b"%d" % number for number in range(10)]
        assert await read_log(client) == expected
        assert await read_ledger(client, writer.ledger_id) == expected


async def test_exited_client_raises_when_it_is_used(autojump_clock: trio.testing.MockClock) -> None:
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


async def test_reader_raises_when_it_outlives_its_client(autojump_clock: trio.testing.MockClock) -> None:
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


@pytest.mark.parametrize("value", [None, 5, 1.5, b"1:0", (1, 0), "", "x", "1:-1"])
def test_invalid_position_names_the_expected_form(value: object) -> None:
    with pytest.raises(replog.errors.PositionError) as caught:
        replog.Position.parse(value)  # type: ignore[arg-type]
    assert str(caught.value) == f"invalid position {value!r}: expected a Position or text like '17:42'"


def test_a_position_is_parsed_as_it_is() -> None:
    assert replog.Position.parse(replog.Position(17, 42)) == replog.Position(17, 42)


async def test_invalid_entry_names_the_expected_type(autojump_clock: trio.testing.MockClock) -> None:
    """Before anything is pushed, whatever there is room for."""
    async with cluster(3) as world, world.client() as client:
        async with client.write_log("log") as log, client.create_ledger() as ledger:
            for writer in (log, ledger):
                for wrong in (None, 5, "text", [b"a"]):
                    expected = f"an entry must be bytes, not {type(wrong).__name__}: nothing was written"
                    for verb in ("append", "push"):
                        with pytest.raises(TypeError, match=expected):
                            await getattr(writer, verb)(wrong)
                    with pytest.raises(TypeError, match=expected):
                        writer.push_nowait(wrong)  # type: ignore[arg-type]
                    with pytest.raises(TypeError, match=r"an entry must be bytes, not \w+: nothing was written"):
                        await writer.extend([b"good", wrong])  # type: ignore[list-item]
                for no_list in (None, 5, "text", b"bytes"):
                    expected = (
                        f"a list of entries, each of them bytes, not {type(no_list).__name__}: nothing was written"
                    )
                    with pytest.raises(TypeError, match=expected):
                        await writer.extend(no_list)  # type: ignore[arg-type]
            assert log.last_add_pushed is None
            assert ledger.last_add_pushed == -1


def test_blocking_writers_name_the_expected_type(tmp_path: Path) -> None:
    with (
        replog.blocking.embed(tmp_path, storage="memory", metastore="memory:") as client,
        client.write_log("log") as log,
    ):
        for wrong in (None, 5, "text"):
            with pytest.raises(TypeError, match="an entry must be bytes"):
                log.append(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a list of entries"):
            log.extend(None)  # type: ignore[arg-type]
        with pytest.raises(replog.errors.PositionError, match="expected a Position or text"):
            client.trim_log("log", before=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"options": 5},
        {"quorum": (3, 3, 2)},
        {"quorum": 0},
        {"registry": "files"},
        {"placement": None},
        {"placement": 5},
        {"metastore": 5},
    ],
    ids=str,
)
async def test_unusable_client_arguments_are_named(wrong: dict[str, Any], tmp_path: Path) -> None:
    (name, value) = next(iter(wrong.items()))
    with pytest.raises(ConfigError, match=re.escape(repr(value))):
        async with replog.embed(tmp_path / "wal", **wrong):
            pass
    with pytest.raises(ConfigError, match=re.escape(repr(value))):
        async with replog.connect(**{"metastore": "memory:", name: value}):
            pass


def every_path(directory: Path) -> list[Path]:
    return list(directory.rglob("*"))


@pytest.mark.parametrize("directory", [None, 5, [5], {}])
async def test_invalid_directory_is_named(directory: Any) -> None:
    with pytest.raises(ConfigError, match="directory"):
        async with replog.embed(directory):
            pass


@pytest.mark.parametrize("wrong", [{"bookie_options": 5}, {"storage": 5}])
async def test_unusable_bookie_arguments_are_named(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="5"):
        async with replog.embed(tmp_path / "wal", **wrong):
            pass
    assert not (tmp_path / "wal").exists(), "nothing was made"


async def test_a_bookie_is_served_as_its_config_says_and_not_otherwise() -> None:
    for wrong in (None, 5, "./wal"):
        with pytest.raises(ConfigError, match="must be a BookieConfig"):
            async with replog.serve_bookie(wrong):  # type: ignore[arg-type]
                pass


async def test_a_storage_may_be_named_beside_other_options_of_bookies(tmp_path: Path) -> None:
    options = BookieOptions(queue_bytes_max=1 << 26)
    async with replog.embed(tmp_path, storage="memory", metastore="memory:", bookie_options=options) as client:
        assert not any(path.name == "journal" for path in every_path(tmp_path)), "its storage is in memory"
        assert client.bookies[0]._server.bookie_id
    with pytest.raises(ConfigError, match="named twice: storage='files', and 'lmdb' in bookie_options"):
        async with replog.embed(tmp_path, storage="files", bookie_options=BookieOptions(storage="lmdb")):
            pass


async def test_invalid_number_is_named(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client() as client:
        async with client.create_ledger() as ledger, client.write_log("log") as log:
            await ledger.append(b"0")
            await log.append(b"0")
        async with client.open_ledger(ledger.ledger_id) as reader:
            for wrong in (None, "0", 1.5, True):
                for verb in (
                    lambda: client.log_segments("log", first=wrong),  # type: ignore[arg-type]  # noqa: B023
                    lambda: client.log_segments("log", end=wrong or "none"),  # type: ignore[arg-type]  # noqa: B023
                    lambda: client.jobs.append_ledgers("log", wrong),  # type: ignore[arg-type]  # noqa: B023
                ):
                    with pytest.raises(ConfigError, match="must be"):
                        await verb()
            for wrong in (None, "0"):
                for read in (lambda: reader.read(wrong, 0), lambda: reader.read(0, wrong)):  # type: ignore[arg-type]  # noqa: B023
                    with pytest.raises(ConfigError, match="must be a whole number"):
                        await read()
