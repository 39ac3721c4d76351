"""Opening a bucket: the marker that says what it is, and a look whether the store keeps conditions.

Each client looks again, at the cost of one read and two puts that must be refused: the store behind a name may be another one
today. Where it does not refuse them, it has replaced the marker by the same marker.
"""

from __future__ import annotations

from functools import partial

import attrs
import trio

from replog.errors import MetastoreCorruptError
from replog_objects.calls import Calls, Outcome, Pace
from replog_objects.errors import BucketRefusedError
from replog_objects.layout import MARKER, MARKER_BODY
from replog_objects.options import Target
from replog_objects.requests import Conflict, Effect, RequestFailed, Requests, Tag

_WHAT = "opening it"
_REMEDY = "nothing else was written. Use a store that has conditional puts (Amazon's, Google's and Azure's do)"
_STALE_E_TAG = '"00000000000000000000000000000000"'


class Opening:
    """Done once for each client, before its first call."""

    def __init__(self, calls: Calls, target: Target) -> None:
        self._calls = calls
        self._target = target
        self._turn = trio.Lock()
        self._is_done = False

    async def ensure(self) -> None:
        """Raises `BucketRefusedError`, `MetastoreCorruptError`, `MetastoreUnavailableError`."""
        if self._is_done:
            return
        async with self._turn:
            if not self._is_done:
                await self._open()
                self._is_done = True

    async def _open(self) -> None:
        found = await self._calls.read(_WHAT, lambda requests: requests.get(MARKER))
        if found is None:
            await self._is_refused(None)  # creates it; if others are quicker, it is there as well
            found = await self._calls.read(_WHAT, lambda requests: requests.get(MARKER))
        if found is None or found.body != MARKER_BODY:
            problem = f"the object {MARKER!r} is not what this replog-objects writes there"
            raise MetastoreCorruptError(
                f"{self._target}: {problem}: another program's, or a newer format. Nothing was changed"
            )
        stale = attrs.evolve(found.tag, e_tag=_STALE_E_TAG, version=found.tag.version and "1")
        for condition, name in ((None, "a put that creates overwrites"), (stale, "a put with a stale ETag overwrites")):
            if not await self._is_refused(condition):
                raise BucketRefusedError(f"{self._target}: this store ignores conditions: {name}; {_REMEDY}")

    async def _is_refused(self, condition: Tag | None) -> bool:
        outcome = Outcome()
        with self._calls.deadline(_WHAT, outcome):
            pace = Pace()
            while await pace.next():
                try:
                    await self._calls.attempt(partial(_put_marker, condition=condition), outcome)
                    return False
                except Conflict:
                    return True
                except RequestFailed as error:
                    if error.effect is Effect.NONE:
                        raise BucketRefusedError(f"{self._target}: {_WHAT}: {error}; {_REMEDY}") from None
                    outcome.is_in_doubt = False  # of the marker, which is the same whoever writes it
        raise AssertionError("attempts end by the deadline")


def _put_marker(requests: Requests, condition: Tag | None) -> Tag:
    return requests.put(MARKER, MARKER_BODY, condition)
