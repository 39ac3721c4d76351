"""Fills the disk of three members of a metastore, and looks what they still take.

    python -m tests.disks.full_members DIRECTORY

Started by `test_full_members.py`, with a small file system at the directory, which all of them share.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from replog.errors import MetastoreUnavailableError, MetastoreUncertainError
from replog.metastores.quorum.metastore import QuorumMetastore
from tests.disks.small_disk import fill
from tests.metastores.quorum.cluster import QuorumCluster, quorum_cluster

_VALUE = bytes(200_000)
_ATTEMPTS = 10  # to hear it from one who leads
_LEFT_BYTES = 8 << 20  # of what all of them gave up: half of what one holds back


async def main(directory: Path) -> None:
    async with (
        quorum_cluster(directory / "members") as cluster,
        cluster.client(timeout_s=2.0) as client,
        cluster.client(timeout_s=60.0) as patient,
    ):
        versions = {f"k{number}": await patient.create(f"k{number}", _VALUE) for number in range(8)}
        assert not any(place.store.is_short for place in cluster.places.values())
        filler = fill(directory, 0)
        with pytest.raises(MetastoreUnavailableError, match="its disk is full"):
            for number in range(100):
                with suppress(MetastoreUncertainError):  # nobody leads for a while, on a busy machine
                    await client.create(f"more{number}", _VALUE)
                if any(place.store.is_short for place in cluster.places.values()):
                    # Before the others use what this one gave up, for as long as they have no full disk themselves.
                    take_all(cluster, directory)
        await still_takes(cluster, client, versions)
        filler.unlink()
        for place in cluster.places.values():
            place.store.make_up()
            assert not place.store.is_short
        await patient.create("last", _VALUE)
        assert all(place.node.failure is None for place in cluster.places.values())


def take_all(cluster: QuorumCluster, directory: Path) -> None:
    """Another program takes all that the members have given up: not the first of them only has a full disk."""
    for place in cluster.places.values():
        place.store._spare.give_up()
    fill(directory, _LEFT_BYTES)


async def still_takes(cluster: QuorumCluster, client: QuorumMetastore, versions: dict[str, int]) -> None:
    """Votes, announcements, values of the same size, and deletions: what is needed to make room. Also after a restart."""
    for name in list(cluster.places):
        await cluster.stop(name)
        cluster.start(name)
        assert cluster.places[name].store.is_short
    async with cluster.client(timeout_s=60.0) as patient:
        version = await patient.put("k0", _VALUE, versions["k0"])
        async with patient.announce("here", b"v"):
            assert (await patient.get("k0")).version == version
        for number in range(1, 8):
            await patient.delete(f"k{number}", versions[f"k{number}"])
    with pytest.raises(MetastoreUnavailableError, match="its disk is full"):
        for _ in range(_ATTEMPTS):
            with suppress(MetastoreUncertainError):
                await client.put("k0", 2 * _VALUE, version)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
