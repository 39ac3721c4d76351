"""The processes of these tests: `python -m tests.metastores.zookeeper.actors '{"...": ...}'`.

Each changes records until SIGTERM, and says from time to time in a line of JSON how far it is; it ends by writing down what it
made.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import attrs
import trio

from replog.registry import Registry
from tests.metastores.zookeeper.changes import Changer, Made

_SAYS_EACH_S = 0.2


@attrs.frozen
class Config:
    """`made` is the file to write at the end."""

    metastore: str
    name: str
    made: str
    tasks: int = 6
    seed: int = 0


def read_made(path: Path) -> Made:
    """What a process made."""
    return Made(**json.loads(path.read_text()))


async def run(config: Config) -> None:
    metastore = Registry().open_metastore(config.metastore)
    try:
        changer = Changer(metastore, config.name, tasks=config.tasks, seed=config.seed)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_say, changer.made)
            nursery.start_soon(_stop_on_terminate, changer)
            await changer.run()
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await metastore.aclose()
    await trio.Path(config.made).write_text(json.dumps(attrs.asdict(changer.made)))


async def _say(made: Made) -> None:
    while True:
        said = {"total": made.total(), "written_unanswered": made.written_unanswered, "uncertain": made.uncertain}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
        await trio.sleep(_SAYS_EACH_S)


async def _stop_on_terminate(changer: Changer) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            changer.stop()


if __name__ == "__main__":
    trio.run(run, Config(**json.loads(sys.argv[1])))
