"""A reader whose wait is cancelled goes on where it stood: no record is skipped (D3, L6)."""

from pathlib import Path

import trio

import replog


async def test_cancelling_a_read_at_any_checkpoint_loses_nothing(tmp_path: Path) -> None:
    with trio.fail_after(20):
        async with replog.embed(tmp_path) as client:
            async with client.write_log("log") as log:
                for number in range(20):
                    await log.append(b"%d" % number)
            async with client.read_log("log") as reader:
                found: list[bytes] = []
                while len(found) < 20:
                    with trio.CancelScope() as scope:
                        scope.cancel()
                        found.append((await reader.receive()).data)
                    batch = await reader.receive_batch()
                    if batch is not None:
                        found += batch.payloads()
                assert found == [b"%d" % number for number in range(20)]


async def test_cancelling_a_read_of_a_ledger_loses_nothing(tmp_path: Path) -> None:
    with trio.fail_after(20):
        async with replog.embed(tmp_path) as client, client.create_ledger() as writer:
            for number in range(5):
                await writer.append(b"%d" % number)
            async with client.open_ledger(writer.ledger_id) as reader:
                batches = reader.batches()
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await batches.__anext__()
                assert [batch.payloads() async for batch in batches] == [[b"%d" % number] for number in range(5)]


async def test_cancelling_while_the_reader_connects_only_delays_it(tmp_path: Path) -> None:
    async def cancel_after(checkpoints: int, scope: trio.CancelScope) -> None:
        for _ in range(checkpoints):
            await trio.lowlevel.checkpoint()
        scope.cancel()

    with trio.fail_after(60):
        async with replog.embed(tmp_path) as client, client.write_log("log") as log:
            await log.append(b"kept")
        for checkpoints in range(1, 7):
            async with replog.embed(tmp_path) as client, client.read_log("log") as reader:
                found = []
                async with trio.open_nursery() as nursery:
                    with trio.CancelScope() as scope:
                        nursery.start_soon(cancel_after, checkpoints, scope)
                        found.append((await reader.receive()).data)
                found += [record.data async for record in reader]
                assert found == [b"kept"]


async def test_position_follows_the_last_returned_record(tmp_path: Path) -> None:
    with trio.fail_after(20):
        async with replog.embed(tmp_path) as client, client.write_log("log") as log:
            positions = await log.extend([b"0", b"1", b"2"])
            async with client.read_log("log") as reader:
                assert reader.position is None
                assert (await reader.receive()).data == b"0"
                assert reader.position == positions[0]
            async with client.read_log("log", after=reader.position) as reader:
                assert reader.position == positions[0]
                assert [record.data async for record in reader] == [b"1", b"2"]
                assert reader.position == positions[2]
            async with client.read_log("log") as reader:
                assert await reader.receive_batch() is not None
                assert reader.position == positions[2]
