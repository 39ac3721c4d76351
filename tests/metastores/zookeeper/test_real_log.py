"""replog as it is used: bookies, writers and readers over a ZooKeeper whose answers are lost again and again."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from replog.testing import serve_proxy
from tests.failures.cluster import cluster
from tests.metastores.zookeeper.storms import storm
from tests.servers.zookeeper import ZooKeeper, url

pytestmark = [pytest.mark.needs_zookeeper, pytest.mark.slow, pytest.mark.long(is_sampled=False)]

OPTIONS = {"lease_s": 2, "timeout_s": 2}
CONFIRMING_S = 60.0
TAKEOVERS = 2


async def test_confirmed_entries_survive_lost_answers_of_zookeeper(
    zookeeper: ZooKeeper, zookeeper_chroot: str, tmp_path: Path
) -> None:
    async with serve_proxy(zookeeper.address) as proxy:
        async with cluster(tmp_path, metastore=url(proxy.address, zookeeper_chroot, **OPTIONS)) as found:
            await found.start_writer("writer-0")
            await found.start_reader("reader")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(storm, proxy, 1)
                for number in range(1, TAKEOVERS + 1):
                    await found.confirms(200, CONFIRMING_S)
                    found.note(f"writer-{number} takes over")
                    await found.start_writer(f"writer-{number}")
                    await found.writers[number - 1].says("fenced", CONFIRMING_S)
                await found.confirms(200, CONFIRMING_S)
                nursery.cancel_scope.cancel()
            events = await found.judged(confirmed_min=TAKEOVERS * 200)
            assert sum(event.kind == "fenced" for event in events) == TAKEOVERS
