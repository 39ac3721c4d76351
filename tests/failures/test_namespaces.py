"""Real packets that vanish: each process in a network namespace of its own, joined by a bridge.

    REPLOG_TEST_METASTORE=quorum python -m tests.failures.test_namespaces

does the same where the bookies keep the metastore: then this process must be on a host, too, to ask them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from replog.testing.history import latencies_s
from tests.failures.cluster import BOOKIES, CONFIRMING_S, cluster
from tests.failures.namespaces import ForbiddenError, Network, network
from tests.failures.options import REPLACING_S, RETURNING_S


@pytest.fixture
def hosts() -> Iterator[Network]:
    """One for each bookie, one for writers, one for readers."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(network(BOOKIES + 2))
        except ForbiddenError as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield found


@pytest.mark.long(is_sampled=False)
async def test_isolated_bookies_are_replaced_and_used_again(hosts: Network, tmp_path: Path) -> None:
    await isolate(hosts, tmp_path)


async def isolate(hosts: Network, directory: Path) -> None:
    async with cluster(directory, hosts=hosts.hosts) as found:
        await found.start_writer("writer")
        await found.start_reader("reader")
        calm_p99_s = await found.calm_p99_s()

        cut_off = (await found.ensemble())[0]
        since_s = found.note(f"bookie {cut_off.number} is cut off")
        hosts.hosts[cut_off.number].cut_off()
        await found.replaced([cut_off], REPLACING_S)
        await found.p99_recovers(calm_p99_s, since_s, REPLACING_S + 1)

        mute = (await found.ensemble())[1]
        since_s = found.note(
            f"nothing comes from bookie {mute.number} to the writer, and from {cut_off.number} to anybody"
        )
        hosts.hosts[mute.number].never_answers(found.writers_host)
        await found.replaced([mute], REPLACING_S)
        await found.p99_recovers(calm_p99_s, since_s, REPLACING_S + 1)

        hosts.hosts[cut_off.number].join()
        hosts.hosts[mute.number].answers(found.writers_host)
        first, second = (await found.ensemble())[:2]
        since_s = found.note(f"bookies {first.number} and {second.number} are cut off: those that came back must do")
        hosts.hosts[first.number].cut_off()
        hosts.hosts[second.number].cut_off()
        await found.replaced([first, second], RETURNING_S)
        await found.p99_recovers(calm_p99_s, since_s, RETURNING_S + 1)
        hosts.hosts[first.number].join()
        hosts.hosts[second.number].join()

        lossy = (await found.ensemble())[:2]
        how = [hosts.hosts[bookie.number].lose() for bookie in lossy] + [found.writers_host.lose()]
        found.note(f"packets of bookies {[bookie.number for bookie in lossy]} and of the writer are lost: {how[0]}")
        await found.confirms(200, 2 * CONFIRMING_S)
        assert found.writers_host.lost_packets() + sum(hosts.hosts[each.number].lost_packets() for each in lossy) > 0
        for host in (*(hosts.hosts[bookie.number] for bookie in lossy), found.writers_host):
            host.lose_nothing()

        events = await found.judged()
        assert [event for event in events if event.kind == "unknown"] == [], "networks fail, the writer does not"
        assert latencies_s(events)[-1] < RETURNING_S


if __name__ == "__main__":
    with network(BOOKIES + 3) as made, tempfile.TemporaryDirectory() as place:
        made.hosts[-1].enter()
        trio.run(isolate, made, Path(place))
