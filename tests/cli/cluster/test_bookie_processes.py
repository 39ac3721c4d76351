"""The bookies of a local cluster as a context manager, which `replog demo` uses."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio

from replog.cli.cluster.bookie_processes import Plan, State, local_cluster
from replog.cli.cluster.peers import ClusterFailedError

OPTIONS = ("bookie.read_only_below_bytes=0",)
DEADLINE_S = 60.0  # for processes on a busy machine


async def test_killed_bookie_is_not_started_again_and_the_others_leave(tmp_path: Path) -> None:
    with trio.fail_after(DEADLINE_S):
        async with local_cluster(Plan(tmp_path, 2, assignments=OPTIONS, needs_all=True)) as members:
            one, other = members.members
            await members.kill(one.name)
            assert other.state is State.SERVING
        assert [each.state for each in members.members] == [State.DEAD, State.LEFT]
    assert '"stopped"' in (tmp_path / "logs" / "bookie-1.log").read_text(encoding="utf-8")


async def test_body_is_cancelled_when_a_bookie_dies(tmp_path: Path) -> None:
    with trio.fail_after(DEADLINE_S):
        with pytest.raises(ClusterFailedError, match="bookie-0 died: it was killed by signal 9"):
            async with local_cluster(Plan(tmp_path, 1, assignments=OPTIONS, needs_all=True)) as members:
                os.kill(members.members[0].pid, signal.SIGKILL)
                await trio.sleep_forever()


async def test_bookie_gives_the_reason_when_it_cannot_serve(tmp_path: Path) -> None:
    (tmp_path / "bookie-0").write_text("a file", encoding="utf-8")
    with trio.fail_after(DEADLINE_S):
        with pytest.raises(ClusterFailedError, match=r"bookie-0 cannot serve: .*bookie-0"):
            async with local_cluster(Plan(tmp_path, 1, assignments=OPTIONS)):
                pass
