"""Processes change the same keys at the same time, through a proxy that loses answers, while all of them remove tombstones; one
is killed. There must be an order of their calls that a single register would have given the same answers in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from bad_proxy import PASSING, Fault, bad_proxy
from history_client import KEYS
from s3_server import Bucket

from tests.failures.register_history import Call, by_register, violation
from tests.lanes.seeds import seeds

PROCESSES = 3
FAULTS = [each for each in PASSING if each not in (Fault.SILENCE, Fault.SILENCE_AFTER)]


def start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command)


def calls_in(path: Path) -> list[Call]:
    found = []
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        if fields["answer"] == "unavailable":
            continue  # it did not happen
        if fields["what"] in ("get", "children") and fields["answer"] is None:
            continue
        value = fields["value"].encode() if fields["what"] in ("create", "put", "get") else b""
        found.append(
            Call(
                fields["what"],
                fields["begun_s"],
                fields["ended_s"],
                value,
                fields["expected"],
                fields["answer"],
                fields["key"],
                tuple(fields.get("words", ())),
            )
        )
    return found


def judged(calls: list[Call], keys: tuple[str, ...]) -> dict[str, str]:
    registers: dict[str, list[Call]] = {}
    for key in keys:
        of_parent = [each for each in calls if each.what != "children" or each.key == key.rpartition("/")[0]]
        registers[key] = by_register(of_parent, [key])[key]
    return {key: problem for key, each in registers.items() if (problem := violation(each))}


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(3, few=1))
async def test_histories_of_processes_are_linearizable(bucket: Bucket, tmp_path: Path, seed: int) -> None:
    with bad_proxy(bucket.server.address) as (proxy, address):
        proxy.at_random(seed, 0.15, FAULTS)
        url = bucket.url(address, tombstone_s=0, timeout_s=3)
        children = []
        for number in range(PROCESSES + 1):
            path = tmp_path / str(number)
            command = [sys.executable, str(Path(__file__).with_name("history_client.py"))]
            children.append(start([*command, url, str(path), f"{seed}{number}", "60"]))
        try:
            with trio.fail_after(240):
                killed_after = tmp_path / str(PROCESSES)
                while not killed_after.exists() or killed_after.read_text().count("\n") < 20:  # noqa: ASYNC110 - a process
                    await trio.sleep(0.02)
                children[-1].kill()
                for child in children:
                    await trio.to_thread.run_sync(child.wait)
        finally:
            for child in children:
                child.kill()
                child.wait()
        assert [child.returncode for child in children[:-1]] == [0] * PROCESSES
    calls = [each for number in range(PROCESSES + 1) for each in calls_in(tmp_path / str(number))]
    # The killed one may have been amid any change.
    last_s = max(each.ended_s for each in calls_in(tmp_path / str(PROCESSES)))
    for key in KEYS:
        calls.append(Call("delete", last_s, last_s, answer=None, key=key))
        calls += [
            Call(what, last_s, last_s, value_of_next(tmp_path / str(PROCESSES), seed), answer=None, key=key)
            for what in ("create", "put")
        ]
    assert judged(calls, KEYS) == {}
    assert sum(proxy.faults[each] for each in FAULTS) > 10


def value_of_next(path: Path, seed: int) -> bytes:
    """What the killed process was writing, if it was."""
    return b"%d%d-%d" % (seed, PROCESSES, path.read_text().count("\n"))


def test_judge_finds_a_resurrected_value() -> None:
    calls = [
        Call("create", 0.0, 1.0, b"1", None, 1, "keys/a"),
        Call("delete", 2.0, 3.0, b"", None, 0, "keys/a"),
        Call("get", 4.0, 5.0, b"1", None, 1, "keys/a"),
    ]
    assert judged(calls, ("keys/a",))
