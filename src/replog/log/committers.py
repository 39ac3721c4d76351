"""A log's leader for committers: it announces itself, and watches the log's record for their requests (L10), and for another
leader's takeover, of which one that appends nothing would not hear otherwise (L5).

The announcement is advice, and so is its absence (M3): a committer that finds none takes the log over, as it does if
its request is not answered. It looks twice, because a leader appends before it is announced. Between requests this costs what
the metastore's `wait_changed` costs, and nothing per append.
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
    """Announces the leader of a log, and has it roll whenever the log's record has a request: until it has ended. Ends it when
    the record is another leader's.

    Goes on while rolls or the metastore fail: then committers depose the leader, and nothing else is different."""
    while True:
        try:
            await _announced(name, ledgers, driver, rolling)
            return
        except ReplogError:
            await trio.sleep(_AGAIN_S)


async def _announced(name: str, ledgers: Ledgers, driver: LogDriver, rolling: Rolling) -> None:
    metastore, token = ledgers.records.metastore, ledgers.entropy.token(8)
    own: int | None = None  # the version that this leader wrote last, as far as it was looked at
    version: int | None = None  # the one that was seen last
    is_asked = False
    async with metastore.announce(f"{log_leaders_key_path(name)}/{token}", token.encode()):
        while True:
            if rolling.version != own:
                # What the leader has written itself need not be read. A committer that finds the announcement changes that, or
                # has changed it already: so its request is answered, however early it is.
                own, version, is_asked = rolling.version, rolling.version, rolling.is_asked
            if not is_asked:
                await metastore.wait_changed(log_key_path(name), version)
                if rolling.version == own:
                    head, version = await driver.records.head(name)
                    # Another look at the own version: a roll may have ended while the record was read.
                    if head is not None and rolling.version == own and rolling.heed(head):
                        return  # deposed
                    is_asked = head is not None and bool(head.requests)
            elif await rolling.roll():
                own = None
            else:
                return  # deposed, or closed
