"""What the README promises of three disks: one may fail, and be replaced by an empty one."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import replog
from replog.abc import Storage
from replog.bookie.groups import SyncedByKernel
from replog.client.membership import Membership
from replog.config.client import ClientTuning
from replog.errors import StorageFailedError


def break_storage(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to the disk: which one a lone append takes depends on the bookie's place in the ensemble."""
    kind = type(storage)

    def broken(work: Callable[..., Any]) -> Callable[..., Any]:
        def fail(self: Storage, *arguments: object) -> Any:
            if self is storage:
                raise StorageFailedError("the disk is gone", "replace it")
            return work(self, *arguments)

        return fail

    monkeypatch.setattr(kind, "commit", broken(kind.commit))
    if issubclass(kind, SyncedByKernel):
        monkeypatch.setattr(kind, "begin_commit", broken(kind.begin_commit))


def heard_of_failure(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """Set when a client has heard that a bookie failed."""
    heard, shun = trio.Event(), Membership.shun

    def shun_and_tell(self: Membership, bookie_id: str) -> None:
        shun(self, bookie_id)
        heard.set()

    monkeypatch.setattr(Membership, "shun", shun_and_tell)
    return heard


async def test_a_log_goes_on_without_a_disk_and_with_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disks = [tmp_path / name for name in ("one", "two", "three")]
    with trio.fail_after(60):
        patient = ClientTuning(bookie_retry_after_s=60.0)  # who failed is left alone until the end of this
        async with replog.embed(disks, options=patient) as client:
            async with client.write_log("log") as log:
                await log.append(b"with three")
                heard = heard_of_failure(monkeypatch)
                break_storage(client.bookies[2]._server.storage, monkeypatch)
                await log.append(b"with two")
                await heard.wait()  # two may have answered before it
                await log.roll()
                await log.append(b"still with two")
            async with client.write_log("log") as log:
                await log.append(b"another writer")
        monkeypatch.undo()
        shutil.rmtree(disks[2])
        async with replog.embed(disks) as client, client.write_log("log") as log:
            await log.append(b"with a new one")
            async with client.read_log("log") as reader:
                found = [record.data async for record in reader]
            assert found == [b"with three", b"with two", b"still with two", b"another writer", b"with a new one"]
