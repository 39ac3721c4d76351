"""The shared way to a client: options, passwords, what may be made, signals."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import pytest
import trio
import typer
from typer.testing import CliRunner

from replog.cli.connecting import (
    Connection,
    Stop,
    client_from,
    concurrently,
    confirm,
    run,
    run_gently,
    takes_connection,
)
from replog.cli.ending import InterruptedBySignal
from replog.config import ClientOptions
from replog.errors import ConfigError, MetastoreError, ReplogError
from tests.cli.logs import make_log

app = typer.Typer(no_args_is_help=True)
seen: list[tuple[Connection, str, int]] = []


@app.command()
@takes_connection
def look(connection: Connection, name: Annotated[str, typer.Argument()], count: int = 3) -> None:
    """Looks."""
    seen.append((connection, name, count))


@app.command()
def another() -> None:
    """Makes the one above a command with a name."""


# -- options ------------------------------------------------------------------------------------------------------


def test_a_command_has_its_own_options_and_those_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLOG_CONFIG", "some.toml")
    arguments = ["look", "x", "--count", "5", "--dir", "a", "--dir", "b", "--option", "n=1", "--password-file", "p"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    connection = Connection(directories=("a", "b"), config=Path("some.toml"), options=("n=1",), password_file=Path("p"))
    assert seen.pop() == (connection, "x", 5)
    shown = CliRunner().invoke(app, ["look", "--help"], env={"COLUMNS": "200"}).output
    for each in ("Looks.", "--count", "--metastore", "REPLOG_METASTORE", "REPLOG_PASSWORD", "REPLOG_CLIENT_NAME"):
        assert each in shown


def test_options_of_the_command_win_over_environment_and_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "replog.toml"
    file.write_text("[client]\ntakeover_timeout_s = 1\nadd_timeout_s = 1\nmetastore_timeout_s = 1\n[another]\nx = 1\n")
    monkeypatch.setenv("REPLOG_CLIENT_ADD_TIMEOUT_S", "2")
    monkeypatch.setenv("REPLOG_CLIENT_METASTORE_TIMEOUT_S", "2")
    connection = Connection(config=file, options=("metastore_timeout_s=3", "roll_bytes=64MiB"))
    expected = ClientOptions(takeover_timeout_s=1, add_timeout_s=2, metastore_timeout_s=3, roll_bytes=64 << 20)
    assert connection.client_options() == expected


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("roll_bytes", "is written name=value"),
        ("nonsense=1", "no such option: nonsense"),
        ("roll_bytes=x", "a whole number"),
    ],
)
def test_wrong_options_are_reported(option: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Connection(options=(option,)).client_options()


def test_a_password_is_in_a_file_or_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REPLOG_PASSWORD", raising=False)
    assert Connection().password() == b""
    monkeypatch.setenv("REPLOG_PASSWORD", "from the environment")
    assert Connection().password() == b"from the environment"
    file = tmp_path / "password"
    for content, expected in ((b"secret\n", b"secret"), (b"s\xff\r\n", b"s\xff"), (b"two\n\n", b"two\n"), (b"", b"")):
        file.write_bytes(content)
        assert Connection(password_file=file).password() == expected
    file.write_bytes(b"x" * 70_000)
    for path in (file, tmp_path / "missing", tmp_path):
        with pytest.raises(ConfigError, match=f"--password-file {path}"):
            Connection(password_file=path).password()


# -- what is there, and what is made ------------------------------------------------------------------------------


async def logs_by(connection: Connection, *, creates: bool = False) -> list[str]:
    async with client_from(connection, creates=creates) as client:
        return await client.logs()


def problem_of(connection: Connection) -> str:
    with pytest.raises(ReplogError) as raised:
        trio.run(logs_by, connection)
    return str(raised.value)


def test_misspelt_name_creates_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REPLOG_METASTORE", raising=False)
    wal = make_log(tmp_path / "wal", [b"one"])
    before = sorted(tmp_path.rglob("*"))
    assert "has no embedded log" in problem_of(Connection(directories=(str(tmp_path / "missing"),)))
    assert "has no embedded log" in problem_of(Connection(directories=(str(tmp_path),)))
    assert "name the one above it" in problem_of(Connection(directories=(str(wal / "bookie-0"),)))
    for url in (f"lmdb:{tmp_path}/missing", f"lmdb:{tmp_path}/missing?timeout_s=1"):
        assert f"{tmp_path}/missing: there is no such directory" in problem_of(Connection(metastore=url))
    assert "where is the data?" in problem_of(Connection())
    assert "--storage goes with --dir" in problem_of(Connection(metastore="memory:x", storage="files"))
    assert sorted(tmp_path.rglob("*")) == before
    monkeypatch.setenv("REPLOG_METASTORE", "nonsense:")
    assert "nonsense" in problem_of(Connection())
    assert trio.run(logs_by, Connection(directories=(str(wal),))) == ["log"]  # whatever the environment says
    assert trio.run(logs_by, Connection(metastore=f"lmdb:{wal}/metadata")) == ["log"]


def test_unreadable_directory_is_named(tmp_path: Path) -> None:
    """As one of another user; the name too long stands for it, since tests may run as root."""
    assert "--dir: cannot be looked into" in problem_of(Connection(directories=(str(tmp_path / ("x" * 300)),)))


async def test_a_command_may_make_an_embedded_log(tmp_path: Path) -> None:
    connection = Connection(directories=(str(tmp_path / "new" / "wal"),))
    assert await logs_by(connection, creates=True) == []
    assert await logs_by(connection) == []
    several = Connection(directories=(str(tmp_path / "a"), str(tmp_path / "b")))
    assert await logs_by(several, creates=True) == []
    async with client_from(several) as client:
        assert len(client.bookies) == 2


def test_storage_of_a_directory_is_detected(tmp_path: Path) -> None:
    wal = make_log(tmp_path, [b"one"], storage="lmdb")
    assert trio.run(logs_by, Connection(directories=(str(wal),))) == ["log"]
    assert trio.run(logs_by, Connection(directories=(str(wal),), storage="lmdb")) == ["log"]
    file = wal / "bookie-0" / "storage.json"
    file.write_text(file.read_text().replace("replog lmdb storage", "a storage of a plugin"))
    assert "is a 'a storage of a plugin': name it with --storage" in problem_of(Connection(directories=(str(wal),)))


def test_a_metastore_of_its_own_for_embedded_bookies(tmp_path: Path) -> None:
    url = f"lmdb:{tmp_path}/elsewhere"
    connection = Connection(directories=(str(tmp_path / "wal"),), metastore=f"{url}?create=true")
    assert trio.run(lambda: logs_by(connection, creates=True)) == []
    assert not (tmp_path / "wal" / "metadata").exists()
    assert trio.run(logs_by, Connection(directories=(str(tmp_path / "wal"),), metastore=url)) == []


# -- running ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_a_run(number: signal.Signals) -> None:
    ended: list[str] = []

    async def wait() -> None:
        signal.raise_signal(number)
        try:
            await trio.sleep(60)
        finally:
            ended.append("cleanly")

    with pytest.raises(InterruptedBySignal) as raised:
        run(wait)
    assert (raised.value.number, ended) == (number, ["cleanly"])


def test_gentle_run_is_asked_first_and_then_cancelled() -> None:
    async def finish(stop: Stop, count: int) -> None:
        stop.is_gentle = True
        signal.raise_signal(signal.SIGTERM)
        await stop.unless_asked(trio.sleep_forever)
        await stop.unless_asked(trio.sleep_forever)  # and no wait begins any more
        for _ in range(count):
            signal.raise_signal(signal.SIGINT)
        await trio.sleep(0.2 if count == 0 else 60)
        finished.append(count)

    finished: list[int] = []
    for count in (0, 1):
        with pytest.raises(InterruptedBySignal) as raised:
            run_gently(finish, count)
        assert raised.value.number == signal.SIGTERM
    assert finished == [0]


def test_errors_of_a_run_are_raised_unchanged() -> None:
    async def fail() -> None:
        raise MetastoreError("it is gone")

    with pytest.raises(MetastoreError, match="it is gone"):
        run(fail)


async def test_concurrent_results_are_in_order(autojump_clock: trio.testing.MockClock) -> None:
    at_once = most = 0

    async def ask(number: int) -> int:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await trio.sleep(1 / (number + 1))
        at_once -= 1
        if number == 77:
            raise MetastoreError("seventy-seven")
        return number * number

    assert [pair async for pair in concurrently(ask, range(40))] == [(each, each * each) for each in range(40)]
    assert 1 < most <= 16
    assert [pair async for pair in concurrently(ask, range(0))] == []
    with pytest.raises(MetastoreError, match="seventy-seven"):
        [pair async for pair in concurrently(ask, range(70, 80))]


def test_confirm_fails_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    confirm("Delete it?", True)
    with pytest.raises(ConfigError, match=r"Delete it\? There is no terminal to ask on: use --yes"):
        confirm("Delete it?", False)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ConfigError):
        confirm("Delete it?", False)
