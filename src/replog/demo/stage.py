"""What all acts need, and do alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import attrs
import trio

from replog.api import Client
from replog.demo.appending import Quota
from replog.demo.bookies import Cluster
from replog.demo.following import Follower
from replog.demo.input import Input
from replog.demo.leader import LeaderConfig
from replog.demo.leading import LeaderProcess, leading
from replog.demo.options import LOG_NAME
from replog.demo.results import Takeover
from replog.demo.view import View
from replog.protocol.model import LedgerMetadata

_A_MOMENT_S = 0.05  # so long at most, by chance: anywhere in a leader's rounds


@attrs.frozen
class Stage:
    """Where the acts are played, on what, how long and before whom. `client` is that of a bystander, who only looks."""

    directory: Path
    cluster: Cluster
    follower: Follower
    client: Client
    source: Input
    quota: Quota
    view: View

    def leading(
        self, name: str, *, is_endless: bool = True, roll_bytes: int | None = None
    ) -> AbstractAsyncContextManager[LeaderProcess]:
        """A leader: one that appends until something happens to it, or one that closes the log after its quota."""
        quota = Quota() if is_endless else self.quota
        path = None if self.source.path is None else str(self.source.path)
        config = LeaderConfig(self.cluster.metastore, path, quota.entries, quota.seconds, roll_bytes)
        return leading(name, config, self.directory / f"{name.replace(' ', '-')}.stderr")

    # -- while a leader appends ---------------------------------------------------------------------------------------

    def showing(self, leader: LeaderProcess) -> Callable[[], float]:
        """Shows how far the leader is each time this is called, and gives how much of the quota it has used since now."""
        before, started_s = leader.last.entries, time.monotonic()

        def show() -> float:
            last = leader.last
            fraction = self.quota.fraction(last.entries - before, time.monotonic() - started_s)
            in_flight = last.pushed - last.entries
            followed = self.follower.entries
            self.view.progress(
                last.entries, str(last.position), in_flight=in_flight, followed=followed, fraction=fraction
            )
            return fraction or 0.0

        return show

    async def append_quota(self, leader: LeaderProcess) -> None:
        """Watches the leader append as much as was asked for, and a moment longer."""
        show = self.showing(leader)
        used = 0.0
        while used < 1:
            await leader.next_confirmed()
            used = show()
        with trio.move_on_after(random.uniform(0, _A_MOMENT_S)):
            while True:
                await leader.next_confirmed()
                show()

    # -- telling and looking ------------------------------------------------------------------------------------------

    def taken_over(self, leader: LeaderProcess, takeover: Takeover) -> None:
        """Tells of a takeover that was done."""
        ledgers = "1 ledger" if takeover.ledgers_recovered == 1 else f"{takeover.ledgers_recovered} ledgers"
        recovered = f"fenced {ledgers} in {takeover.recovery_s * 1000:,.0f} ms"
        who = f"{leader.name} (process {leader.process.pid})"
        self.view.done(f"{who} took over in {takeover.total_s:.2f} s: {recovered}, then replayed the log")

    async def current_ledger(self) -> LedgerMetadata:
        """The metadata of the log's last ledger, as it is now."""
        log = await self.client.log_metadata(LOG_NAME)
        return await self.client.ledger_metadata(log.segments[-1].ledger_id)
