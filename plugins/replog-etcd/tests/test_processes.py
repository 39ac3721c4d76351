"""Several processes change one key by CAS through a network that cuts connections and swallows answers."""

import json
import random
import subprocess
import sys

import pytest
import trio
from etcd_servers import Store

from replog.testing import serve_proxy

PROCESSES = 3
WORDS = 12

CHILD = """
import contextlib, json, sys, trio
from replog.errors import MetastoreError, VersionConflictError
from replog_etcd.metastore import EtcdMetastore
from replog_etcd.options import EtcdOptions, Target

async def add(metastore, word):
    while True:
        with contextlib.suppress(MetastoreError):  # an unknown outcome among them: what was read back tells
            found = await metastore.get("list")
            words = json.loads(found.value)
            if word in words:
                return
            await metastore.put("list", json.dumps([*words, word]).encode(), found.version)
            return

async def main():
    target, name, count = sys.argv[1:]
    metastore = EtcdMetastore(Target.parse(target), EtcdOptions(request_timeout_s=0.5))
    for number in range(int(count)):
        await add(metastore, f"{name}-{number}")
    await metastore.aclose()

trio.run(main)
"""


def start_child(target: str, number: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, target, str(number), str(WORDS)])


@pytest.mark.long(is_sampled=False)  # the same with tasks of one process is in make test: test_failures.py
async def test_no_update_is_lost_or_doubled(store: Store) -> None:
    entropy = random.Random(3)
    async with serve_proxy(store.servers[0].address) as proxy, store.client() as other:
        await other.create("list", b"[]")
        target = store.url(proxy.address).removeprefix("etcd://")
        children = [start_child(target, number) for number in range(PROCESSES)]
        try:
            with trio.fail_after(120):
                while any(child.poll() is None for child in children):
                    await trio.sleep(entropy.uniform(0.01, 0.05))
                    if entropy.random() < 0.7:
                        proxy.reset()
                    else:
                        proxy.to_client.swallow()
                        await trio.sleep(0.1)
                        proxy.reset()
                        proxy.mend()
        finally:
            for child in children:
                child.kill()
                child.wait()
        assert [child.returncode for child in children] == [0] * PROCESSES
        words = json.loads((await other.get("list")).value)
        assert sorted(words) == sorted(f"{name}-{number}" for name in range(PROCESSES) for number in range(WORDS))
        assert proxy.connections > PROCESSES  # it was disturbed
