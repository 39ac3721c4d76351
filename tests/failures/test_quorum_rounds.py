"""Members in processes under faults: histories of their clients are those of single registers (Q1-Q14)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import replog
from tests import forks
from tests.failures.namespaces import ForbiddenError, network
from tests.failures.processes import ROOT
from tests.failures.quorum_members import in_thread
from tests.failures.quorum_rounds import Campaign, campaign

_ROUNDS, _SAMPLE, _LONG_ROUNDS = 2, 3, 50
COMMAND = [sys.executable, "-m", "replog.cli"]


def command(*arguments: str, lines: str = "") -> str:
    done = forks.run([*COMMAND, *arguments], timeout=120, given=lines)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def failing(*arguments: str) -> str:
    done = forks.run([*COMMAND, *arguments], timeout=120)
    assert done.returncode, done.stdout
    return str(done.stderr)


async def announced(client: replog.Client, count: int) -> None:
    """Waits until so many bookies are there."""
    with trio.fail_after(60):
        while len(await client.admin.bookies()) < count:  # noqa: ASYNC110 - bookies announce themselves
            await trio.sleep(0.05)


async def test_registers_are_linearizable_under_faults(tmp_path: Path) -> None:
    """Everywhere: with processes on one host, whose network does not fail."""
    counts, wrong = await campaign(tmp_path, 1, _ROUNDS, members=3)
    assert not wrong, "\n".join(wrong)
    assert counts["get: answered"] > 10 * _ROUNDS
    assert counts["put: answered"] > _ROUNDS


@pytest.fixture
def _namespaces() -> None:
    try:
        with network(1):
            pass
    except ForbiddenError as error:
        pytest.skip(f"no network namespaces here: {error}")


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.usefixtures("_namespaces")
def test_registers_are_linearizable_while_all_kinds_of_faults_happen(is_long: bool) -> None:
    """Networks, members and disks, too. In a process of its own, all of whose threads are in a namespace."""
    command = [
        sys.executable,
        "-m",
        "tests.failures.quorum_rounds",
        "--rounds",
        str(_LONG_ROUNDS if is_long else _SAMPLE),
    ]
    done = subprocess.run(
        [*command, "--seed", "2"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=3600 if is_long else 300,
        check=False,
    )
    assert not done.returncode, done.stdout + done.stderr


async def test_cluster_of_three_commands_survives_a_machine(tmp_path: Path) -> None:
    """As the page says it: three commands, a log, the status; then one machine is lost."""
    made = Campaign(tmp_path, 3, 1)
    members = made.members.used
    url = f"quorum:{','.join(made.members.addresses)}?timeout_s=60"  # on a busy machine
    async with made.running():
        async with replog.connect(url) as client:
            await announced(client, 3)
            async with client.write_log("orders", quorum=replog.Quorum(3, 3, 2)) as log:
                await log.append(b"one")
        status = json.loads(command("metastore", "status", "--metastore", url, "--json"))
        assert status["survives"] == 1
        leading = next(each for each in members if each.address == leader_address(status))
        await in_thread(leading.kill)
        command("log", "append", "orders", "--metastore", url, "--quorum", "2,2,2", lines="two\n")
        assert command("log", "read", "orders", "--metastore", url) == "one\ntwo\n"
        status = json.loads(command("metastore", "status", "--metastore", url, "--json"))
        assert status["survives"] == 0
        assert "survives the loss of: none" in command("metastore", "status", "--metastore", url)


async def test_one_machine_goes_on_after_the_loss_of_two(tmp_path: Path) -> None:
    """Rescue: refused while a member answers; afterwards a cluster of one, which others join with empty directories."""
    made = Campaign(tmp_path, 3, 1)
    members = made.members.used
    url = f"quorum:{','.join(made.members.addresses)}?timeout_s=60"  # on a busy machine
    async with made.running():
        async with replog.connect(url) as client:
            await announced(client, 1)
            async with client.write_log("orders", quorum=replog.Quorum(1, 1, 1)) as log:
                await log.append(b"one")
        left = str(tmp_path / "m0")
        await in_thread(members[0].kill)
        assert "a member answers at" in failing("metastore", "rescue", left, "--force")
        for each in members[1:]:
            await in_thread(each.kill)
        (found,) = json.loads(command("metastore", "rescue", left, "--json"))["found"]
        assert found["address"] == members[0].address
        assert "has most" in command("metastore", "rescue", left)
        assert "is cluster" in command("metastore", "rescue", left, "--force")
        await in_thread(members[0].launch)
        alone = f"quorum:{members[0].address}?timeout_s=60"
        assert command("log", "list", "--metastore", alone, "--json")
        status = json.loads(command("metastore", "status", "--metastore", alone, "--json"))
        assert [each["address"] for each in status["members"]] == [members[0].address]
        shutil.rmtree(tmp_path / "m1" / "metastore")
        await in_thread(members[1].launch)
        command("metastore", "add", members[1].address, "--metastore", alone)
        status = json.loads(command("metastore", "status", "--metastore", alone, "--json"))
        assert {each["address"] for each in status["members"]} == {each.address for each in members[:2]}
        # Who comes back with the old disk belongs to another cluster, and stays outside.
        await in_thread(members[2].launch)
        assert json.loads(command("metastore", "status", "--metastore", alone, "--json"))["survives"] == 0


def leader_address(status: dict[str, object]) -> str:
    members = status["members"]
    assert isinstance(members, list)
    return str(next(each["address"] for each in members if each.get("role") == "leader"))
