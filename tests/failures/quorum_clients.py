"""Clients of a metastore under faults: what they ask at random, and what they are told."""

from __future__ import annotations

import random
from collections import Counter

import attrs
import trio

from replog.abc import Metastore
from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    MetastoreUnavailableError,
    MetastoreUncertainError,
    VersionConflictError,
)
from tests.failures.quorum_members import Members
from tests.failures.register_history import CONFLICT, EXISTS, MISSING, Call

_KEYS = 4
_READS = ("get", "get", "get", "children")
_ALL = ("get", "get", "create", "put", "put", "delete", "children")
_CALLS_MAX = 20  # until a client forgets who leads: so one that was deposed is asked, too


@attrs.define
class Clients:
    """Clients that call the metastore until they are told to stop, with keys below `prefix`; `calls` is what they were told."""

    members: Members
    prefix: str
    choice: random.Random
    calls: list[Call] = attrs.field(factory=list)
    is_ending: bool = False
    _writes: int = 0

    @property
    def keys(self) -> list[str]:
        return [f"{self.prefix}/k{each}" for each in range(_KEYS)]

    async def run(self, *, is_reader: bool) -> None:
        """Calls from one client, one behind the other."""
        versions: dict[str, int] = {}
        while not self.is_ending:
            async with self.members.metastore(self.choice) as metastore:
                for _ in range(self.choice.randint(1, _CALLS_MAX)):
                    what = self.choice.choice(_READS if is_reader else _ALL)
                    call = await self._call(metastore, what, self.choice.choice(self.keys), versions)
                    if call is not None:
                        self.calls.append(call)
                    if self.is_ending:
                        break

    async def _call(self, metastore: Metastore, what: str, key: str, versions: dict[str, int]) -> Call | None:
        expected = versions.get(key, 1) if what in ("put", "delete") else None
        self._writes += 1
        value = b"%d" % self._writes if what in ("create", "put") else b""
        words: list[str] = []
        begun_s = trio.current_time()
        answer: int | str | None = 0
        try:
            match what:
                case "get":
                    found = await metastore.get(key)
                    answer, value = found.version, found.value
                case "create":
                    answer = await metastore.create(key, value)
                case "put":
                    assert expected is not None
                    answer = await metastore.put(key, value, expected)
                case "delete":
                    await metastore.delete(key, expected)
                case _:
                    words = await metastore.children(self.prefix)
        except KeyExistsError:
            answer = EXISTS
        except KeyNotFoundError:
            answer = MISSING
        except VersionConflictError:
            answer = CONFLICT
        except MetastoreUncertainError:
            answer = None
        except MetastoreUnavailableError:
            return None  # nothing was written
        if isinstance(answer, int) and answer:
            versions[key] = answer
        return Call(what, begun_s, trio.current_time(), value, expected, answer, key, tuple(words))

    def counts(self) -> Counter[str]:
        """How many calls of each kind were answered, or have an unknown outcome."""
        return Counter(f"{each.what}: {'unknown' if each.answer is None else 'answered'}" for each in self.calls)
