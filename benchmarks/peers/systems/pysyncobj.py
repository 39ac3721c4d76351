"""PySyncObj: three processes with a replicated object that counts entries; the client is within the leader's process.

That is its best case: no entry goes through a socket of a client. So the client's CPU time can't be told apart, and stands in
the servers'. Its journal is a memory map that nothing syncs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs

from benchmarks.figures import Figures, clock, percentiles
from benchmarks.peers.children import environment, held_bytes
from benchmarks.peers.system import Load, NotMeasured, Promise
from tests.servers.processes import HOST, free_port

MEMBERS = 3
_PROGRAM = "benchmarks.peers.systems.pysyncobj_member"
_PATIENCE_S = 60.0  # for an answer, beside what was asked for takes
_LOOK_S = 0.02
_LEADING_S = 0.5  # that a leader appends before it is killed


class Member:
    """The process, and what it is asked."""

    def __init__(self, directory: Path, own: str, others: Sequence[str], *, is_tuned: bool = True) -> None:
        self.address = own
        settings = () if is_tuned else ("--defaults",)
        self._command = [sys.executable, "-m", _PROGRAM, *settings, str(directory), own, *others]
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The one that runs."""
        assert self._process is not None, "it does not run"
        return self._process

    def start(self) -> None:
        """It ends with its standard input, so it does not outlive us."""
        self._directory.mkdir(exist_ok=True)
        self._received = b""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment()},
            )

    def kill(self) -> None:
        """SIGKILL. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
            self._process = None

    def tell(self, do: str, **arguments: object) -> None:
        """Asks, and does not wait for an answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        except BrokenPipeError:
            raise self._ended() from None

    def answer(self, within_s: float = _PATIENCE_S) -> Any:
        """The next one. Raises `NotMeasured` for one that says so, for none in time, and if the process has ended."""
        while b"\n" not in self._received:
            self._receive(within_s)
        line, _, self._received = self._received.partition(b"\n")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise NotMeasured(answer["error"])
        return answer

    def _receive(self, within_s: float) -> None:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(within_s):
                raise NotMeasured(f"{self.address}: no answer within {within_s:.0f} s")
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data:
            raise self._ended()
        self._received += data

    def ask(self, do: str, *, within_s: float = _PATIENCE_S, **arguments: object) -> Any:
        """Asks, and waits for the answer."""
        self.tell(do, **arguments)
        return self.answer(within_s)

    def last_answer(self) -> Any:
        """The last one that it gave before it was killed. To be called instead of `kill`, which it does."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        whole_lines = (self._received + self.process.stdout.read()).split(b"\n")[:-1]
        self.kill()
        if not whole_lines:
            raise NotMeasured(f"{self.address} had said nothing before it was killed")
        return json.loads(whole_lines[-1])

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def _ended(self) -> NotMeasured:
        return NotMeasured(
            f"{self.address} has ended: {self._log.read_text(encoding='utf-8', errors='replace')[-2000:]}"
        )


class PySyncObjRunning:
    """Three members."""

    def __init__(self, members: Sequence[Member], directory: Path) -> None:
        self._members = members
        self._directory = directory
        self._wait_until_all_agree()

    @property
    def process_ids(self) -> list[int]:
        """Of the members."""
        return [each.process.pid for each in self._members]

    def append(self, load: Load) -> Figures:
        """As `Running.append`."""
        if load.entries_per_call > 1:
            raise NotMeasured("it has no form for many entries in one call")
        for each in self._members:
            each.ask("compact")
        leader = self._leader()
        others = [each.process.pid for each in self._members if each is not leader]
        within_s = _PATIENCE_S + 2 * load.seconds
        found: Figures = leader.ask("append", process_ids=others, within_s=within_s, **attrs.asdict(load))
        return found

    def scan(self, entry_bytes: int, entries: int) -> Figures:
        """There is no form of it."""
        raise NotMeasured("a replicated object is no log: entries can't be read again once they are applied")

    def tail(self, entry_bytes: int, entries: int) -> Figures:
        """As `Running.tail`: until the entry is applied to the object of a follower."""
        self._wait_until_all_agree()  # else the follower would see the last entries of an earlier load
        leader = self._leader()
        follower = next(each for each in self._members if each is not leader)
        follower.ask("watch")
        called_s = leader.ask("append_each", entry_bytes=entry_bytes, entries=entries)
        seen_s = follower.ask("seen", entries=entries)
        return percentiles([seen - called for seen, called in zip(seen_s, called_s, strict=True)])

    def take_over(self, entry_bytes: int) -> Figures:
        """As `Running.take_over`: another member is asked to append, and goes on asking."""
        leader = self._leader()
        others = [each for each in self._members if each is not leader]
        before = leader.ask("look")
        leader.tell("append_for_ever", entry_bytes=entry_bytes)
        time.sleep(_LEADING_S)
        killed_s = clock()
        confirmed = leader.last_answer()["confirmed"] - before["confirmed"]
        took_s = others[0].ask("confirm_one", entry_bytes=entry_bytes)["confirmed_s"] - killed_s
        leader.start()
        self._wait_until_all_agree()
        found = others[0].ask("look")["entries"] - before["entries"]
        if found < confirmed + 1:
            raise NotMeasured(f"{confirmed + 1} entries were confirmed, and {found} are there")
        return {"takeover_s": took_s}

    def restart(self) -> Figures:
        """As `Running.restart`."""
        for each in self._members:
            each.kill()
        held = held_bytes(self._directory)
        started_s = clock()
        for each in self._members:
            each.start()
        confirmed_s = self._members[0].ask("confirm_one", entry_bytes=1024)["confirmed_s"]
        self._wait_until_all_agree()
        return {"restart_s": confirmed_s - started_s, "held_bytes": float(held)}

    def _leader(self) -> Member:
        return next(each for each in self._members if each.address == self._members[0].ask("look")["leader"])

    def _wait_until_all_agree(self) -> None:
        """On a leader, and on what there is."""
        deadline = clock() + _PATIENCE_S
        while True:
            seen = [each.ask("look") for each in self._members]
            leaders, counts = ({each[name] for each in seen} for name in ("leader", "entries"))
            if len(leaders) == len(counts) == 1 and "" not in leaders and all(each["is_ready"] for each in seen):
                return
            if clock() > deadline:
                raise NotMeasured(f"the members did not agree within {_PATIENCE_S:.0f} s: {seen}")
            time.sleep(_LOOK_S)


class PySyncObj:
    """The system, with our settings, or with those that it has without any."""

    name = "pysyncobj"
    title = "PySyncObj"
    is_replicated = True
    promise = Promise(
        copies=3,
        confirmed_by=2,
        is_synced=False,
        words="three members (Raft), confirmed by two, with a journal file each, which is a memory map that is never synced; "
        "appendEntriesPeriod 2 ms instead of 100, ticks of 1 ms instead of 50, batches of 256 KiB instead of 64, elections after "
        "1 to 2 s; the client is within the leader's process, and its CPU time among the servers'",
    )

    def __init__(self, *, is_tuned: bool = True) -> None:
        self._is_tuned = is_tuned

    def missing(self) -> str | None:
        """The package, if it isn't there."""
        if importlib.util.find_spec("pysyncobj") is None:
            return "no pysyncobj: it comes with the extra bench: pip install replog[bench]"
        return None

    def version(self) -> str:
        """Of the package."""
        return version("pysyncobj")

    @contextmanager
    def running(self, directory: Path) -> Iterator[PySyncObjRunning]:
        """Three members, of which one leads."""
        addresses = [f"{HOST}:{free_port()}" for _ in range(MEMBERS)]
        with ExitStack() as stack:
            members = []
            for number, own in enumerate(addresses):
                others = [each for each in addresses if each != own]
                members.append(Member(directory / f"member-{number}", own, others, is_tuned=self._is_tuned))
                stack.callback(members[-1].kill)
                members[-1].start()
            yield PySyncObjRunning(members, directory)


SYSTEM = PySyncObj()
