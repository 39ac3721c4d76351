"""A log's leader for committers: it announces itself, and watches the log's record for their requests (L10).

The announcement is advice, and so is its absence (M3): a committer that finds none takes the log over, as it does if
its request is not answered. Between requests this costs what the metastore's `wait_changed` costs, and nothing per append.
"""

from __future__ import annotations

import trio

from replog.client.ledgers import Ledgers
from replog.errors import ReplogError
from replog.log.log_driver import LogDriver
from replog.log.rolling import Rolling
from replog.records.paths import log_key_path, log_leaders_key_path

_AGAIN_S = 5.0


async def answer_committers(name: str, ledgers: Ledgers, driver: LogDriver, rolling: Rolling) -> None:
    """Announces the leader of a log, and has it roll whenever the log's record has a request: until it has ended.

    Goes on while rolls or the metastore fail: then committers depose the leader, and nothing else is different."""
    while True:
        try:
            await _announced(name, ledgers, driver, rolling)
            return
        except ReplogError:
            await trio.sleep(_AGAIN_S)


async def _announced(name: str, ledgers: Ledgers, driver: LogDriver, rolling: Rolling) -> None:
    metastore, token = ledgers.records.metastore, ledgers.chance.token(8)
    async with metastore.announce(f"{log_leaders_key_path(name)}/{token}", token.encode()):
        while True:
            # After the announcement: a committer that finds it has its request answered, however early that is.
            head, version = await driver.records.head(name)
            if head is None or not head.requests:
                await metastore.wait_changed(log_key_path(name), version)
            elif not await rolling.roll():
                return  # deposed, or closed
