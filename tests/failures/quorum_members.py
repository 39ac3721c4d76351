"""Processes with members, started and killed; places for others; and what the cluster itself says of its members."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from replog.metastores.quorum.metastore import QuorumMetastore
from replog.registry import Registry
from tests.disks.preload import failing_library
from tests.failures.namespaces import Host
from tests.failures.processes import ROOT
from tests.servers.processes import HOST, Server, ServerFailedError, free_port

SPARES = 2
_PORT = 3181
_ANYBODY = ("--authentication", "none:?administer_from_anywhere=yes")  # changes members, from another host, too
_STATUS_S = 4.0
_SETTLED_S = 90.0  # in which a healed cluster must have let everybody in


class Member(Server):
    """A process with a bookie and a member, at an address that it keeps."""

    def __init__(self, directory: Path, number: int, host: Host | None = None) -> None:
        self.place = directory / f"m{number}"
        self.place.mkdir()
        self.host = host
        self.address = f"{host.address}:{_PORT}" if host is not None else f"{HOST}:{free_port()}"
        self.is_busy = False  # something is done to it
        self._faults = directory / f"m{number}.faults"
        self._ahead_s = 0
        self.fail(0, 0)
        path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        super().__init__(f"m{number}", [], directory, {"PYTHONPATH": path, "LD_PRELOAD": failing_library()})

    def use_peers(self, addresses: Sequence[str]) -> None:
        """The process begins with these peers from now on."""
        run = [sys.executable, "-m", "tests.failures.quorum_process", str(self._faults), "bookie"]
        where = ["--data", str(self.place), "--listen", self.address, "--peers", ",".join(addresses), *_ANYBODY]
        self._command = [*(self.host.prefix if self.host is not None else ()), *run, *where]

    def wipe(self) -> None:
        """Its member's disk is empty; the process does not run."""
        assert not self.is_running, "a process that runs keeps its disk"
        shutil.rmtree(self.place / "metastore", ignore_errors=True)

    @property
    def has_left_a_name(self) -> bool:
        """True if it set aside a disk that had a name (Q11): none of the faults here is a reason for that. A disk that failed
        when it was begun has no name yet."""
        return any((self.place / "metastore").glob("left-*/member.json"))

    def hang(self) -> None:
        """Like `freeze`, but of a process that may end by itself."""
        try:
            self.freeze()
        except ServerFailedError:
            if self.is_running:
                raise

    def set_clock(self, ahead_s: int) -> None:
        """Its clock is ahead by so much, also when it is started again."""
        self._ahead_s = ahead_s
        self.fail(0, 0)

    def fail(self, error: int, count: int) -> None:
        """So many calls that change its member's disk fail."""
        said = {"ahead_s": self._ahead_s, "below": str(self.place / "metastore"), "error": error, "count": count}
        new = self._faults.with_suffix(".new")
        new.write_text(json.dumps(said))
        new.rename(self._faults)


@attrs.frozen
class Said:
    """What the cluster says: its leader's view, and the name of each process, by address."""

    members: dict[str, str]  # addresses, by name
    is_changing: bool
    names: dict[str, str]


class Members:
    """All places. `used` are those whose processes are to run: members, and those that are to become members."""

    def __init__(self, directory: Path, count: int, hosts: Sequence[Host] = ()) -> None:
        self.places = [Member(directory, each, hosts[each] if hosts else None) for each in range(count + SPARES)]
        self.used = self.places[:count]
        self._leader = ""  # an address, as it was said last
        for each in self.used:
            each.use_peers(self.addresses)

    @property
    def addresses(self) -> list[str]:
        return [each.address for each in self.used]

    @property
    def url(self) -> str:
        return f"quorum:{','.join(self.addresses)}/rounds?timeout_s=3"

    @property
    def idle(self) -> list[Member]:
        """Those that run, and to which nothing is done now."""
        return [each for each in self.used if not each.is_busy and each.is_running]

    def one_of(self, members: Sequence[Member], choice: random.Random) -> Member:
        """One of these; often the one that led when the cluster was asked last."""
        leading = [each for each in members if each.address == self._leader]
        return choice.choice(leading if leading and choice.random() < 0.6 else members)

    @property
    def spares(self) -> list[Member]:
        return [each for each in self.places if each not in self.used]

    @asynccontextmanager
    async def metastore(self, choice: random.Random | None = None) -> AsyncIterator[QuorumMetastore]:
        """A client that knows these members, and not who leads. With `choice` it asks them in any order, with any deadline."""
        addresses, timeout_s = self.addresses, 3
        if choice is not None:
            choice.shuffle(addresses)
            timeout_s = choice.choice((1, 3))
        opened = Registry().open_metastore(f"quorum:{','.join(addresses)}/rounds?timeout_s={timeout_s}")
        assert isinstance(opened, QuorumMetastore)
        try:
            yield opened
        finally:
            with trio.CancelScope(shield=True):
                await opened.aclose()

    async def begin(self, member: Member) -> None:
        """Starts a process that is no member yet, with an empty disk."""
        member.use_peers([*self.addresses, member.address])
        self.used.append(member)
        with busy(member):
            await in_thread(member.wipe)
            await in_thread(member.launch)

    async def end(self, member: Member) -> None:
        """Ends a process that is no member any more."""
        with busy(member):
            await in_thread(member.kill)
            await in_thread(member.wipe)
        self.used.remove(member)

    async def say(self) -> Said | None:
        """What the cluster says; None if it has no leader that answers."""
        async with self.metastore() as metastore:
            found = await metastore.status(_STATUS_S)
        leaders = [each for each in found if each.get("role") == "leader"]
        if not leaders:
            return None
        leading: dict[str, Any] = max(leaders, key=lambda each: int(each["term"]))
        self._leader = str(leading["address"])
        return Said(
            {each["name"]: each["address"] for each in leading["members"]},
            leading["is_changing"],
            {each["address"]: each["name"] for each in found if "name" in each},
        )

    async def is_whole(self) -> bool:
        """True if each process that is to run is a member, under its name: then one disk may be lost."""
        said = await self.say()
        return (
            said is not None
            and not said.is_changing
            and {said.members.get(said.names.get(each, "")) for each in self.addresses} == set(said.members.values())
            and set(self.addresses) == set(said.members.values())
        )

    async def revive(self) -> int:
        """Starts processes that have ended, as a supervisor does: their bookies found no metastore when they began. Returns
        how many there were."""
        ended = [each for each in self.used if not each.is_busy and not each.is_running]
        with busy(*ended):
            for each in ended:
                await in_thread(each.kill)
                await in_thread(each.launch)
        return len(ended)

    async def settle(self) -> str:
        """Ends processes that were not let in, when nothing fails any more. Returns what is wrong if the others are not all
        members soon."""
        deadline_s, said = trio.current_time() + _SETTLED_S, None
        while trio.current_time() < deadline_s:
            said = await self.say()
            if said is not None and not said.is_changing:
                members = set(said.members.values())
                for each in [each for each in self.used if each.address not in members]:
                    await self.end(each)
                # It was let in at the very moment when it was ended: then its disk was lost.
                for each in [each for each in self.spares if each.address in members]:
                    await self.begin(each)
                if await self.is_whole():
                    return ""
            await trio.sleep(0.2)
        return f"within {_SETTLED_S:.0f} s not all processes are members: {said}"


@contextmanager
def busy(*members: Member) -> Iterator[None]:
    """Nobody else does anything to these."""
    for each in members:
        each.is_busy = True
    try:
        yield
    finally:
        for each in members:
            each.is_busy = False


async def in_thread(call: Callable[[], None]) -> None:
    await trio.to_thread.run_sync(call)
