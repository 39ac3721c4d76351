"""A member in a process of its own: python -m tests.machine.process METASTORE LISTEN. Counts up until its input ends.

It prints each answer, and "leads" when it begins to lead. So a reader of all outputs can tell whether each command was applied
exactly once."""

from __future__ import annotations

import sys

import trio

import replog


async def main(metastore: str, listen: str) -> None:
    async with (
        replog.connect(metastore, quorum=replog.Quorum(1, 1, 1)) as client,
        client.run_machine("visits", replog.ReplicatedCounter, listen=listen or None) as visits,
    ):
        is_leading = False
        while True:
            print(await visits.add(1), flush=True)
            if is_leading is not (visits.status.leads_from is not None):
                is_leading = not is_leading
                print("leads" if is_leading else "follows", flush=True)
            await trio.sleep(0.002)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
