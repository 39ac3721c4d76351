"""How writers are left."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

import trio


class WriterContext(ABC):
    """A writer as a context: leaving it closes it, and leaving it on an error or by cancellation says farewell."""

    @abstractmethod
    async def aclose(self) -> None:
        """Confirms everything and closes."""

    @abstractmethod
    async def say_farewell(self, error: BaseException) -> None:
        """Closes at the last confirmed entry, if that can be done in a few seconds; what can't be is noted on the error."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            await self.say_farewell(error)
            return
        try:
            await self.aclose()
        except trio.Cancelled as cancelled:
            await self.say_farewell(cancelled)
            raise
