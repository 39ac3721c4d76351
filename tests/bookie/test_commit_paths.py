"""Every way to a commit at once: no two adds of other bytes are acknowledged for one entry, a ledger's answers come in its order,
what was acknowledged is on the disk, and nothing stays charged (B1, B2, B9, T3)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

import pytest
import trio

from replog.abc import Mutation, Reply
from replog.backends.files.options import FilesOptions
from replog.backends.files.storage import open_storage
from replog.bookie import commits, kernel_commits
from replog.bookie.groups import SyncedByKernel
from replog.bookie.server import BookieServer
from replog.config.bookie import BookieTuning
from replog.protocol.batch import Batch
from replog.protocol.messages import AddRequest, CopyRequest, Request, Response, Status
from replog.runtime.kernel_sync import KernelSync
from replog.runtime.lent_thread import lent_thread
from tests.bookie.test_kernel_commits import HeldDisk
from tests.bookie.test_server import KEY, Asker, OtherBorrower, a_batch, add
from tests.kit import FaultyStorage, until
from tests.lanes.seeds import seeds
from tests.runtime.test_kernel_sync import PretendedKernel

OPTIONS = BookieTuning(close_timeout_s=30.0, commit_inline_when_idle=True, commit_bytes_max=600)
LEDGERS = (1, 2)
VARIANTS = (b"one", b"other")


class Held(FaultyStorage):
    """A storage whose commits in a thread wait for the gate, and those in the event loop's thread do not."""

    def __init__(self, disk: HeldDisk) -> None:
        super().__init__(open_storage("/st", FilesOptions(), disk=disk), is_instant=False)
        self.opened = threading.Event()
        self.opened.set()
        self._loop_thread = threading.current_thread()

    def commit(self, mutations: Sequence[Mutation]) -> None:
        if threading.current_thread() is not self._loop_thread:
            assert self.opened.wait(60), "a test forgot to open the gate"
        super().commit(mutations)

    def begin_commit(self, mutations: Sequence[Mutation], sync: KernelSync) -> Callable[[OSError | None], None] | None:
        assert isinstance(self.inner, SyncedByKernel)
        return self.inner.begin_commit(mutations, sync)


class Judge:
    """Sends adds, and judges what they were answered by what was sent."""

    def __init__(self, server: BookieServer) -> None:
        self.asker = Asker(server)
        self.sent: dict[int, Batch] = {}  # by request
        self._used: dict[tuple[int, int], set[bytes]] = {}  # what was sent for an entry

    def send(self, *requests: AddRequest) -> None:
        for request, request_id in zip(requests, self.asker.send(*requests), strict=True):
            self.sent[request_id] = request.batch

    def send_waiting(self, request: AddRequest, *, is_followed: bool) -> None:
        self.sent[self.asker.send_waiting(request, is_followed=is_followed)] = request.batch

    @property
    def is_answered(self) -> bool:
        return self.sent.keys() <= self.asker.answers.keys()

    def acknowledged(self) -> dict[tuple[int, int], bytes]:
        """The payload of each entry that was acknowledged."""
        found: dict[tuple[int, int], bytes] = {}
        sent_before: set[tuple[int, int]] = set()
        for request_id, batch in self.sent.items():
            status = self.asker.answers[request_id].status
            entries = {
                (batch.ledger_id, each): data for each, data in zip(batch.entry_ids, batch.payloads(), strict=True)
            }
            assert status in (Status.OK, Status.CONFLICT)
            assert status is Status.OK or not sent_before.isdisjoint(entries), "nothing else was sent for it"
            sent_before |= entries.keys()
            if status is Status.OK:
                for entry, data in entries.items():
                    assert found.setdefault(entry, data) == data, f"other bytes were acknowledged for {entry}"
        return found

    def check_order(self) -> None:
        """B2: of one ledger, and of one kind; copies may go behind adds of other ledgers."""
        for ledger_id in LEDGERS:
            wanted = [each for each, batch in self.sent.items() if batch.ledger_id == ledger_id]
            assert [each for each in self.asker.order if each in wanted] == wanted


class Traffic:
    """Random requests, by every way, while disks and threads are held and let go."""

    def __init__(self, chance: random.Random, storage: Held, disk: HeldDisk, judge: Judge) -> None:
        self._chance = chance
        self._storage = storage
        self._disk = disk
        self._judge = judge
        self._next = dict.fromkeys(LEDGERS, 0)

    def step(self) -> None:
        chance = self._chance
        what = chance.choice(
            ("lone", "lone", "lone", "followed", "followed", "some", "copy", "hold", "let go", "let go")
        )
        if what == "some":
            self._judge.send(*(self._add() for _ in range(chance.randrange(2, 5))))
        elif what == "hold":
            self._storage.opened.clear()
            self._disk.is_held = self._disk.is_held or chance.random() < 0.5
        elif what == "let go":
            self.let_go()
        else:
            request = self._add(is_copy=what == "copy")
            if what == "copy":
                self._judge.send(request)
            else:
                self._judge.send_waiting(request, is_followed=what == "followed")

    def let_go(self) -> None:
        self._storage.opened.set()
        if self._disk._held is not None:
            self._disk.let_go()
        self._disk.is_held = False

    def _add(self, *, is_copy: bool = False) -> AddRequest:
        chance = self._chance
        ledger_id = chance.choice(LEDGERS)
        count = chance.randrange(1, 4)
        first = self._next[ledger_id]
        if chance.random() < 0.4:
            first = max(0, first - chance.randrange(1, 5))  # again, or in part
        self._next[ledger_id] = max(self._next[ledger_id], first + count)
        batch = a_batch(first, count, ledger_id, chance.choice(VARIANTS))
        return CopyRequest(0, ledger_id, KEY, 1, batch, recovery=True) if is_copy else add(batch)


@pytest.mark.parametrize("seed", seeds(12, fast=6))
async def test_no_way_to_a_commit_loses_or_overtakes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "_FAST_COMMIT_S", 60.0)  # however busy the machine is
    monkeypatch.setattr(kernel_commits, "open_kernel_sync", lambda: KernelSync(PretendedKernel()))
    chance, disk = random.Random(seed), HeldDisk()
    storage = Held(disk)
    server = BookieServer(storage, OPTIONS, lambda event: None)
    try:
        async with server.running():
            judge = Judge(server)
            traffic = Traffic(chance, storage, disk, judge)
            judge.send(
                add(a_batch(90, 1, 9))
            )  # a bookie that never committed anything does not know how fast its disk is
            await until(lambda: judge.is_answered, 60)
            for _ in range(60):
                traffic.step()
                if chance.random() < 0.5:
                    await trio.sleep(chance.choice((0, 0, 0.001)))
            traffic.let_go()
            await until(lambda: judge.is_answered, 60)
            acknowledged = judge.acknowledged()
            judge.check_order()
            figures = server.statistics()
            assert (figures["queued_bytes"], figures["queued_requests"]) == (0, 0), "it is charged for ever"
    finally:
        await server.calls.close(30.0)
    left = open_storage("/st", FilesOptions(), disk=disk.after_power_loss(random.Random(seed)))
    for (ledger_id, entry_id), data in acknowledged.items():
        found = left.read(ledger_id, entry_id, 1, 1)[0]
        assert found.payloads()[entry_id - found.first_entry_id] == data, (
            "other bytes are stored than were acknowledged"
        )
    left.close()


class Broken(Held):
    """A plugin's storage, the ends of whose commits raise once what none may raise."""

    is_breaking = False

    def begin_commit(self, mutations: Sequence[Mutation], sync: KernelSync) -> Callable[[OSError | None], None] | None:
        end = super().begin_commit(mutations, sync)
        if end is None or not self.is_breaking:
            return end
        self.is_breaking = False

        def breaks(problem: OSError | None) -> None:
            end(problem)
            raise ZeroDivisionError

        return breaks


async def test_lone_add_is_not_committed_behind_a_failed_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """B1: it was accepted upon what is not durable. The storage itself would take it."""
    monkeypatch.setattr(commits, "_FAST_COMMIT_S", 60.0)
    monkeypatch.setattr(kernel_commits, "open_kernel_sync", lambda: KernelSync(PretendedKernel()))
    disk = HeldDisk()
    storage = Broken(disk)
    server = BookieServer(storage, OPTIONS, lambda event: None)
    answers: dict[int, Response] = {}

    def noted(responses: Sequence[Response]) -> None:
        answers.update({each.request_id: each for each in responses})

    def lone(request_id: int) -> Request:
        request = add(a_batch(request_id))
        request.request_id = request_id
        return request

    def send(request_id: int) -> None:
        def followed() -> None:
            server.handle((lone(request_id),), reply)
            lent_thread().borrow(OtherBorrower())

        lent_thread().lend(followed)

    reply: Reply = noted
    try:
        async with server.running():
            for number in (0, 1):
                send(number)
                await until(lambda number=number: number in answers)  # type: ignore[misc]
            storage.is_breaking = disk.is_held = True
            for number in (2, 3):
                send(number)
            disk.let_go()
            await until(lambda: len(answers) == 4)
    finally:
        await server.calls.close(30.0)
    assert [answers[each].status for each in range(4)] == [Status.OK, Status.OK, Status.UNKNOWN, Status.UNKNOWN]
    left = open_storage("/st", FilesOptions(), disk=disk.after_power_loss(random.Random(1)))
    assert left.read(1, 3, 1, 1) == []
    left.close()
