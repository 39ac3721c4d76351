"""Looks at many logs: each on its own, with a deadline, so that one that hangs does not delay the others; for pictures
and metrics.

A log costs a few reads of the metastore and of its bookies, and no writer anything. So only the first of very many are looked at,
and the others are not even listed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Protocol

import attrs
import trio

from replog.client.administration import RemoteBookie
from replog.errors import LogNotFoundError, MetastoreError, MetastoreUnavailableError, ReplogError
from replog.log.log_summaries import LogSummary

LOGS_MAX = 200  # that are looked at, of those that are not asked for by name
_AT_ONCE = 16


class BookieSource(Protocol):
    """Lists the bookies that are announced."""

    async def bookies(self) -> list[RemoteBookie]:
        """The announced bookies (`Client.admin.bookies`)."""


class LogSource(Protocol):
    """The source of log names and summaries: a `Client`."""

    async def logs(self, *, prefix: str = "", limit: int | None = None) -> list[str]:
        """The names of logs (`Client.logs`)."""

    async def log_summary(self, name: str, *, bounded: bool = False, password: bytes = b"") -> LogSummary:
        """The summary of a log (`Client.log_summary`)."""

    @property
    def admin(self) -> BookieSource:
        """The source of bookies (`Client.admin`)."""


@attrs.frozen
class LogListing:
    """The logs to look at, whether there are more, and which bookies are announced; None: unknown."""

    names: tuple[str, ...]
    are_more: bool
    bookies: frozenset[str] | None


async def list_logs(source: LogSource, timeout_s: float, wanted: Collection[str] = ()) -> LogListing:
    """The logs to look at: those that are wanted, or the first of all. Takes at most two timeouts. Raises `MetastoreError`."""
    names: list[str] = []
    with trio.move_on_after(timeout_s) as scope:
        for name in sorted(wanted):
            names += {name}.intersection(await source.logs(prefix=name, limit=1))
        if not wanted:
            names = await source.logs(limit=LOGS_MAX + 1)
    if scope.cancelled_caught:
        raise MetastoreUnavailableError(f"the metastore did not answer within {timeout_s:g} s")
    bookies = None
    with trio.move_on_after(timeout_s), suppress(MetastoreError):
        bookies = frozenset(each.bookie_id for each in await source.admin.bookies())
    shown = names if wanted else names[:LOGS_MAX]
    return LogListing(tuple(shown), len(names) > len(shown), bookies)


async def look_at_logs(
    source: LogSource,
    names: Iterable[str],
    password: bytes,
    timeout_s: float,
    found: Callable[[LogSummary], None],
    failed: Callable[[str, str], None],
) -> None:
    """Looks at each log, and reports at once the result, or the log's name and the reason of the failure. A log that
    was deleted after it was listed is neither."""
    limit = trio.CapacityLimiter(_AT_ONCE)

    async def look(name: str) -> None:
        async with limit:
            try:
                with trio.fail_after(timeout_s):
                    summary = await source.log_summary(name, bounded=True, password=password)
            except trio.TooSlowError:
                failed(name, f"not known within {timeout_s:g} s")
            except LogNotFoundError:
                return
            except ReplogError as error:
                failed(name, str(error))
            else:
                found(summary)

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(look, name)
