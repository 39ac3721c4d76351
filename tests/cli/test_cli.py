"""The command: its exit status, its results on standard output, its errors in one line on standard error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer

from replog import cli
from replog.cli import installed
from replog.cli.commands import _COMMANDS, _HELPS, app
from replog.demo import command as demo_command
from replog.errors import StorageFailedError
from tests import forks


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """Runs the command in this process; its exit status."""
    monkeypatch.setattr(sys, "argv", ["replog", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code or 0


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "version") == 0
    assert capsys.readouterr().out.startswith(f"replog {version('replog')} (Python 3.")
    assert run(monkeypatch, "version", "--json") == 0
    assert json.loads(capsys.readouterr().out)["replog"] == version("replog")


def test_version_option(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "version") == 0
    of_command = capsys.readouterr().out
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == of_command


def test_plugins_for_people(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "plugins") == 0
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if "lmdb-metastore" in line)
    assert "built in" in row
    assert "metastore lmdb" in row


def test_plugins_for_programs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "plugins", "--json") == 0
    found = {plugin["name"]: plugin for plugin in json.loads(capsys.readouterr().out)}
    assert found["files-storage"] == {
        "name": "files-storage",
        "state": "loaded",
        "origin": "built in",
        "offers": ["storage files"],
        "observes": False,
        "needs": [],
        "problem": None,
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["demo", "--bookies", "0"],
        ["demo", "--entries", "-1"],
        ["demo", "--seconds", "nan"],
        ["demo", "--input", "/nowhere/to/be/found"],
        ["demo", "--input", "/dev/null"],
        ["demo", "--nonsense"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(monkeypatch, *arguments) == 2
    shown = capsys.readouterr()
    assert shown.err
    assert "Traceback" not in shown.err


def test_keep_refuses_a_directory_with_content(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine").touch()
    assert run(monkeypatch, "demo", "--keep", str(tmp_path)) == 2
    assert capsys.readouterr().err == f"replog: --keep {tmp_path}: is not empty; name a new directory\n"
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


def test_error_is_one_line_and_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def fail(*_: object) -> None:
        raise StorageFailedError("the disk is gone", "Buy another")

    monkeypatch.setattr(demo_command, "run", fail)
    assert run(monkeypatch, "demo") == 1
    assert capsys.readouterr().err == "replog: the disk is gone. Buy another\n"


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "replog.cli", "version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.startswith("replog ")
    assert done.stderr == ""


def test_command_ends_without_a_message_when_its_reader_leaves(tmp_path: Path) -> None:
    """As `| head` does: no traceback, and the status that a shell gives for SIGPIPE."""
    command = [sys.executable, "-m", "replog.cli", "plugins", "--json"]
    reading, writing = os.pipe()
    os.close(reading)
    done = forks.run(command, stdout=writing)
    os.close(writing)
    assert done.stderr == ""
    assert done.returncode == 128 + 13


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands and groups of commands, with what is typed."""
    yield path, group
    for name in group.list_commands(None) if hasattr(group, "list_commands") else []:
        yield from commands(group.get_command(None, name), (*path, name))


COMMANDS = list(commands(typer.main.get_command(app)))
DOING = [
    pytest.param(command, id=" ".join(path))
    for path, command in COMMANDS
    if not hasattr(command, "list_commands") or (command.invoke_without_command and path)
]
PROMETHEUS = "log metrics"  # prints what Prometheus reads


@pytest.mark.parametrize("command", [each for each in DOING if each.id != PROMETHEUS])
def test_every_command_has_json(command: Any) -> None:
    assert any("--json" in parameter.opts for parameter in command.params)


@pytest.mark.parametrize("path", [pytest.param(path, id=" ".join(path)) for path, _ in COMMANDS])
def test_help_is_without_types_of_flags_on_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(monkeypatch, *path, "-h") == 0
    shown = capsys.readouterr().out
    assert "--help" in shown
    assert "<bool>" not in shown


@pytest.mark.parametrize("name", _HELPS)
def test_help_of_all_commands_begins_that_of_each(name: str) -> None:
    """The list of commands is shown without importing them, hence has texts of its own."""
    (command,) = (command for path, command in COMMANDS if path == (name,))
    assert command.help.startswith(_HELPS[name])


def test_help_lists_each_command_in_a_group(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    run(monkeypatch, "--help")
    titles = re.findall("─ ([A-Z][a-z ]+) ─", capsys.readouterr().out)
    own = ["Options", "Try it", "Logs and ledgers", "Bookies", "What is installed"]
    assert titles in (own, [*own, "Commands of installed packages"])
    assert list(_HELPS) == list(_COMMANDS)


class _Installed:
    """An entry point. Names differ from test to test: these make each command once (`conftest.py`)."""

    value, dist = "somewhere:command", None

    def __init__(self, name: str, load: Callable[[], Any]) -> None:
        self.name = name
        self.load = load


def test_installed_package_brings_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [_Installed(name, lambda: lambda: print("hello")) for name in ("greet", "unwanted")]
    monkeypatch.setattr(installed, "entry_points", lambda group: found)
    monkeypatch.setenv("REPLOG_PLUGINS_DISABLED", "other, unwanted")
    assert run(monkeypatch, "greet") == 0
    assert capsys.readouterr().out == "hello\n"
    assert run(monkeypatch, "--help") == 0
    shown = capsys.readouterr().out
    assert "greet" in shown
    assert "unwanted" not in shown
    assert run(monkeypatch, "unwanted") == 2


def test_broken_command_of_a_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> Any:
        raise ImportError("no such module")

    monkeypatch.setattr(installed, "entry_points", lambda group: [_Installed("broken", fail)])
    assert run(monkeypatch, "broken") == 2
    assert "the command 'broken' of an unknown package cannot be loaded" in capsys.readouterr().err


def test_command_of_a_package_replaces_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    impostor = _Installed("version", lambda: pytest.fail("it was loaded"))
    monkeypatch.setattr(installed, "entry_points", lambda group: [impostor])
    assert run(monkeypatch, "version") == 0
