"""`replog metastore`: what it refuses before it asks anybody. What it does is in `tests/failures/test_quorum_rounds.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from replog.metastores.quorum.metastore import QuorumMetastore
from tests.cli.test_inspect import run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("status",), "which metastore?"),
        (("status", "--metastore", "memory:"), "is not kept by members of its own"),
        (("add", "m4:3181", "--dir", "wal"), "--dir is for an embedded log"),
        (("remove", "m4:3181", "--metastore", "quorum:"), "names no member"),
    ],
)
def test_wrong_places_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.delenv("REPLOG_METASTORE", raising=False)
    status, output, errors = run(capsys, "metastore", *arguments)
    assert (status, output) == (2, "")
    assert said in errors


def test_directory_without_a_member_is_not_rescued(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, errors = run(capsys, "metastore", "rescue", str(tmp_path), "--force")
    assert status == 1
    assert "no member of a metastore has its files there" in errors
    assert not list(tmp_path.iterdir())


def test_status_without_a_leader_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capsys, "metastore", "status", "--metastore", "quorum:127.0.0.1:1")
    assert status == 1
    assert "no member leads" in output


AWAY = "quorum:127.0.0.1:1,127.0.0.1:2?timeout_s=0.3"


def away(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Runs the command with members of whom none runs, and with a client as patient as they are."""
    return run(capsys, *arguments, "--metastore", AWAY, "--option", "metastore_timeout_s=0.3")


@pytest.mark.parametrize(
    "command", ["log append log x", "log show log", "log tail log", "cursor list log", "ledger show 1", "bookies"]
)
def test_command_names_absent_members_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("replog.cli.bookies._LOOK_TIMEOUT_S", 0.1)
    status, output, errors = away(capsys, *command.split())
    assert (status, output) == (1, "")
    assert errors.count("Members: 127.0.0.1:1 (") == 1
    assert "start those that do not run" in errors
    assert errors.count("reading log 'log'") == (" log" in command)
    assert ("Nothing was appended" in errors) == ("append" in command)


@pytest.mark.parametrize("positions", [[], ["--positions"]], ids=["document", "line"])
def test_failed_opening_of_an_append_is_told_to_programs(
    capsys: pytest.CaptureFixture[str], positions: list[str]
) -> None:
    status, output, _ = away(capsys, "log", "append", "log", "x", "--json", *positions)
    found = json.loads(output)
    assert (status, found["log"], found["entries"], found["unknown_entries"]) == (1, "log", 0, 0)
    assert "Members: 127.0.0.1:1 (" in found["error"]


@pytest.mark.parametrize("logs", [[], ["--logs"]], ids=["bookies", "logs"])
@pytest.mark.parametrize("form", ["--json", "--once"])
def test_picture_of_an_unreachable_metastore_is_a_failure(
    capsys: pytest.CaptureFixture[str], form: str, logs: list[str]
) -> None:
    """A script that looks once hears of it; and it has the document with the reason, however little time a bookie has."""
    status, output, _ = away(capsys, "top", form, "--timeout", "0.1", *logs)
    assert status == 1
    if form == "--json":
        assert "Members: 127.0.0.1:1 (" in json.loads(output)["problem"]
    else:
        assert "no majority of the members answers" in output
        assert "there is no log" not in output


def test_unknown_values_of_the_status_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = away(capsys, "metastore", "status", "--json")
    found = json.loads(output)
    assert (status, found["leader"], found["survives"]) == (1, None, None)
    (first, _) = found["members"]
    assert first.pop("address") == "127.0.0.1:1"
    assert "127.0.0.1:1" in first.pop("problem")
    assert set(first.values()) == {None}
    assert {"name", "role", "term", "committed_index", "members"} <= set(first)


def test_status_has_the_same_fields_of_each_member(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader without a majority may lose no member; a follower does not know who is behind."""
    leads = {
        **{"name": "m1", "address": "a:1", "cluster": "c", "problem": "", "role": "leader", "leader": "m1"},
        **{"leader_address": "a:1", "term": 2, "last_index": 3, "committed_index": 3, "applied_index": 3},
        **{"is_changing": False, "survives": -1},
        "members": [{"name": "m1", "address": "a:1", "behind": 0, "answers": True}],
    }
    follows = {**leads, "name": "m2", "address": "a:2", "role": "follower", "survives": None}
    follows["members"] = [{"name": "m1", "address": "a:1"}]
    waits: dict[str, object] = {
        "name": "m3",
        "address": "a:3",
        "cluster": "",
        "problem": "",
        "role": "waits for its cluster",
        "members": [],
    }

    async def status_of(self: object, timeout_s: float) -> list[dict[str, object]]:
        await trio.lowlevel.checkpoint()
        return [leads, follows, waits, {"address": "a:4", "problem": "no answer"}]

    monkeypatch.setattr(QuorumMetastore, "status", status_of)
    status, output, _ = away(capsys, "metastore", "status", "--json")
    found = json.loads(output)
    assert (status, found["leader"], found["survives"]) == (1, "m1", None)
    first, second, third, fourth = found["members"]
    assert set(first) == set(second) == set(third) == set(fourth) == set(leads)
    assert (first["problem"], first["survives"]) == (None, None)
    assert second["members"] == [{"name": "m1", "address": "a:1", "behind": None, "answers": None}]
    assert (third["members"], fourth["problem"]) == (None, "no answer")
