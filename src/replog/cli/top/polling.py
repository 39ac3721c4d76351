"""Asks all bookies of a cluster for their statistics, and looks at its logs: each on its own, with a deadline, so that
a slow one does not delay the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from replog.api import Client
from replog.cli.top.logs import Logs
from replog.cli.top.model import Cluster
from replog.client.administration import RemoteBookie
from replog.errors import BookieError, MetastoreError
from replog.log.log_looks import list_logs, look_at_logs
from replog.log.log_summaries import LogSummary


class Poller:
    """Polls into a `Cluster`: once with `poll`, or again and again with `run`."""

    def __init__(
        self,
        client: Client,
        cluster: Cluster,
        *,
        interval_s: float,
        timeout_s: float,
        metastore_timeout_s: float | None = None,
    ) -> None:
        """`timeout_s` is a bookie's, and the metastore's if it has no other."""
        self.interval_s = interval_s
        self._client = client
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._metastore_timeout_s = timeout_s if metastore_timeout_s is None else metastore_timeout_s
        self._bookies: dict[str, RemoteBookie] = {}

    async def poll(self) -> bool:
        """Look up the announced bookies, and ask all of them at the same time. Takes at most both timeouts. False if the
        metastore failed."""
        await self._look()
        async with trio.open_nursery() as nursery:
            for bookie_id in self._cluster.bookie_ids:
                nursery.start_soon(self._ask, bookie_id)
        return not self._cluster.problem

    async def run(self) -> None:
        """Poll until cancelled."""
        async with trio.open_nursery() as nursery:
            polled: set[str] = set()
            while True:
                started_s = trio.current_time()
                await self._look()
                for bookie_id in self._cluster.bookie_ids:
                    # One task for each, so that an unresponsive bookie does not delay the figures of others.
                    if bookie_id not in polled:
                        polled.add(bookie_id)
                        nursery.start_soon(self._ask_again_and_again, bookie_id, polled.discard)
                await trio.sleep_until(started_s + self.interval_s)

    async def _ask_again_and_again(self, bookie_id: str, ended: Callable[[str], None]) -> None:
        """Ask one bookie until it is no longer listed."""
        while bookie_id in self._cluster.bookie_ids:
            started_s = trio.current_time()
            await self._ask(bookie_id)
            await trio.sleep_until(started_s + self.interval_s)
        ended(bookie_id)

    async def _look(self) -> None:
        found = await self._within_deadline(self._client.admin.bookies)
        if found is None:
            return
        self._bookies.update((bookie.bookie_id, bookie) for bookie in found)
        announced = {bookie.bookie_id: (list(map(str, bookie.endpoints)), bookie.read_only) for bookie in found}
        labels = {bookie.bookie_id: bookie.labels for bookie in found}
        problems = {bookie.bookie_id: bookie.problem for bookie in found}
        self._cluster.announced(announced, trio.current_time(), labels, problems)
        for bookie_id in self._bookies.keys() - set(self._cluster.bookie_ids):
            del self._bookies[bookie_id]

    async def _within_deadline(self, ask: Callable[[], Awaitable[list[RemoteBookie]]]) -> list[RemoteBookie] | None:
        try:
            with trio.fail_after(self._metastore_timeout_s):
                return await ask()
        except trio.TooSlowError:
            self._cluster.metastore_failed(f"the metastore did not answer within {self._metastore_timeout_s:g} s")
        except MetastoreError as error:
            self._cluster.metastore_failed(str(error))
        return None

    async def _ask(self, bookie_id: str) -> None:
        bookie = self._bookies.get(bookie_id)
        # It vanished from the list between two looks. A loop without a wait needs a checkpoint.
        if bookie is None:
            await trio.lowlevel.checkpoint()
            return
        try:
            statistics = await bookie.statistics(timeout_s=self._timeout_s)
        except (BookieError, MetastoreError) as error:
            self._cluster.failed(bookie_id, str(error), trio.current_time())
        else:
            self._cluster.sampled(statistics, trio.current_time())


class LogPoller:
    """Looks at logs, into `Logs`: once with `poll`, or again and again with `run`."""

    def __init__(
        self,
        client: Client,
        logs: Logs,
        password: bytes,
        *,
        interval_s: float,
        timeout_s: float,
        metastore_timeout_s: float | None = None,
    ) -> None:
        """`timeout_s` is for a look at one log, and for the list of logs if that has no other."""
        self.interval_s = interval_s
        self._metastore_timeout_s = timeout_s if metastore_timeout_s is None else metastore_timeout_s
        self._client = client
        self._logs = logs
        self._password = password
        self._timeout_s = timeout_s
        self._asked = trio.Event()

    async def poll(self) -> bool:
        """List the logs, and look at each. One that hangs takes a timeout, and the others of a few places wait for theirs. False
        if the metastore failed."""
        try:
            listing = await list_logs(self._client, self._metastore_timeout_s)
        except MetastoreError as error:
            self._logs.problem = str(error)
            return False
        self._logs.listed(listing)

        def found(summary: LogSummary) -> None:
            self._logs.summarized(summary, trio.current_time())

        await look_at_logs(self._client, listing.names, self._password, self._timeout_s, found, self._logs.failed)
        return True

    async def run(self, is_wanted: Callable[[], bool]) -> None:
        """Poll until cancelled, while that is wanted."""
        while True:
            self._asked = trio.Event()
            started_s = trio.current_time()
            if is_wanted():
                await self.poll()
            with trio.move_on_at(started_s + self.interval_s):
                await self._asked.wait()

    def poll_soon(self) -> None:
        """Somebody wants to see them now."""
        self._asked.set()
