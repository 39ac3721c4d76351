"""Three bookies are all there are, each on a machine with a candidate: whichever machine dies, the log goes on (C7)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.failures.cluster import CONFIRMING_S, cluster
from tests.failures.options import CLIENT, MARGIN_S

TAKING_OVER_S = CLIENT.absence_wait_s + 2 * CLIENT.speculative_read_after_s + MARGIN_S


@pytest.mark.long
async def test_c7_the_leaders_machine_dies_with_its_bookie(tmp_path: Path) -> None:
    async with cluster(tmp_path, bookies=3) as found:
        writer = await found.start_writer("writer-0")
        await found.start_reader("reader")
        for number, bookie in enumerate(found.bookies, start=1):
            await found.confirms(100, CONFIRMING_S)
            found.note(f"the machine of {writer.name} and bookie {bookie.number} dies")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bookie.running.kill)
                nursery.start_soon(writer.kill)
            writer = await found.start_writer(f"writer-{number}")
            assert found.takeover_s(f"writer-{number}.1") < TAKING_OVER_S
            await found.confirms(100, CONFIRMING_S)
            assert bookie in await found.ensemble(), "there is nobody else"
            if bookie is not found.bookies[-1]:
                await found.start_bookie(bookie)
        await found.judged(confirmed_min=600)
