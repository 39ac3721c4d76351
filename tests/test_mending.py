"""Scrubbing finds damage, and repairs mend it, with real bytes on real disks."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import trio

import replog

_ENTRIES = 40


def payload(number: int) -> bytes:
    return b"needle %04d " % number + bytes(400)


def flip(directory: Path, needle: bytes) -> None:
    """Flips a bit of each place below the directory where this text stands: LMDB leaves old copies of its pages."""
    places = [
        (path, found.start())
        for path in directory.rglob("*")
        if path.is_file()
        for found in re.finditer(re.escape(needle), path.read_bytes())
    ]
    assert places, "it is stored somewhere"
    for path, at in places:
        with path.open("r+b") as file:
            byte = os.pread(file.fileno(), 1, at)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 4]), at)


@pytest.mark.parametrize("storage", ["files", "lmdb"])
@pytest.mark.parametrize("password", [b"", b"secret"], ids=["open", "keyed"])
async def test_damaged_copy_is_replaced_within_one_audit_cycle(storage: str, password: bytes, tmp_path: Path) -> None:
    """Without an operator. Copies of a ledger with a password cannot be verified by a repairer: they are compared (F3)."""
    disks = [tmp_path / name for name in ("one", "two", "three")]
    with trio.fail_after(60):
        async with replog.embed(disks, storage=storage) as client:
            # All three have all copies when it is closed, however late one of them was.
            async with client.create_ledger(password=password, durability="write-quorum") as writer:
                for number in range(_ENTRIES):
                    await writer.append(payload(number))
            victim = client.bookies[1]
            flip(disks[1], b"needle 0017 ")
            flip(disks[1], b"needle 0030 ")
            assert len(await victim.scrub()) == 2
            report = await client.admin.audit()
            assert report.under_replicated == 1
            (torn,) = report.damaged
            assert (torn.ledger_id, torn.bookie_id) == (writer.ledger_id, victim._server.bookie_id)
            assert all(any(first <= each <= last for first, last in torn.entries) for each in (17, 30))
            assert sum(last - first + 1 for first, last in torn.entries) < _ENTRIES
            assert {each.state for fragment in report.lacking for each in fragment.missing} == {"damaged"}
            await mended(client)
            assert await victim.scrub() == ()
            own = victim._server.storage
            read = [own.read(writer.ledger_id, number, 1, 1)[0] for number in range(_ENTRIES)]
            assert all(batch.holds(number) for number, batch in enumerate(read))


async def mended(client: replog.Client) -> None:
    """Repairs as a service does, until an audit finds nothing."""
    async with trio.open_nursery() as nursery:

        def reported(report: replog.results.AuditReport) -> None:
            if not report.under_replicated:
                nursery.cancel_scope.cancel()

        nursery.start_soon(lambda: replog.serve_repairs(client, interval_s=3600.0, reported=reported))
