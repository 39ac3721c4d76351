"""The kinds of work that a bookie takes at the moment: new entries (B5, B10), new ledgers (B6a); and whether writers
should leave it (C8)."""

from __future__ import annotations

import trio


class Mode:
    """Whether a bookie `is_read_only` or `is_draining`, why it doubts its metastore, and a way to wait until that changes.

    A draining bookie goes on taking entries: whether a writer has another bookie is for the writer to see."""

    def __init__(self) -> None:
        self.is_read_only = False
        self.is_draining = False
        self.metastore_problem = ""  # why the bookie doubts its metastore
        self.is_restricted = False  # read-only, or in doubt about its metastore: not all requests are taken
        self._turned = trio.Event()

    @property
    def all(self) -> tuple[bool, bool, str]:
        """`is_read_only`, `is_draining` and `metastore_problem`."""
        return self.is_read_only, self.is_draining, self.metastore_problem

    def turn(
        self,
        *,
        is_read_only: bool | None = None,
        is_draining: bool | None = None,
        metastore_problem: str | None = None,
    ) -> bool:
        """Changes what is given. Returns True if that differs from before."""
        before = self.all
        if is_read_only is not None:
            self.is_read_only = is_read_only
        if is_draining is not None:
            self.is_draining = is_draining
        if metastore_problem is not None:
            self.metastore_problem = metastore_problem
        if self.all == before:
            return False
        self.is_restricted = self.is_read_only or self.metastore_problem != ""
        self._turned.set()
        self._turned = trio.Event()
        return True

    async def turned(self, was: tuple[bool, bool, str]) -> None:
        """Returns as soon as `all` is not what it was."""
        while self.all == was:
            await self._turned.wait()

    async def read_only_turned(self, was: bool) -> None:
        """Returns as soon as `is_read_only` is not what it was."""
        while self.is_read_only is was:
            await self._turned.wait()
