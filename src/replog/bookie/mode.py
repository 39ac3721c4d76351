"""What one bookie takes at the moment: new entries or not (B5, B10), and whether it is to be left (C8)."""

from __future__ import annotations

import trio


class Mode:
    """Whether a bookie `is_read_only` or `is_draining`, and a way to wait until that changes.

    A draining bookie goes on taking entries: whether a writer has another bookie is for the writer to see."""

    def __init__(self) -> None:
        self.is_read_only = False
        self.is_draining = False
        self._turned = trio.Event()

    @property
    def both(self) -> tuple[bool, bool]:
        """`is_read_only` and `is_draining`."""
        return self.is_read_only, self.is_draining

    def turn(self, *, is_read_only: bool | None = None, is_draining: bool | None = None) -> bool:
        """Changes what is given. Returns True if that differs from before."""
        before = self.both
        if is_read_only is not None:
            self.is_read_only = is_read_only
        if is_draining is not None:
            self.is_draining = is_draining
        if self.both == before:
            return False
        self._turned.set()
        self._turned = trio.Event()
        return True

    async def turned(self, was: tuple[bool, bool]) -> None:
        """Returns as soon as `both` is not what it was."""
        while self.both == was:
            await self._turned.wait()

    async def read_only_turned(self, was: bool) -> None:
        """Returns as soon as `is_read_only` is not what it was."""
        while self.is_read_only is was:
            await self._turned.wait()
