"""Changes by CAS whose every lost answer is resolved by reading back (M1), and a judge who finds one lost or made twice.

Two kinds of records, in JSON: counters remember the last change of each task, lists hold the name of every change. So a change
can be recognized for ever, whatever others did since; and "not written" is taken at its word: if a change was written that
the metastore said was not, `made` raises.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import trio

from replog.abc import Metastore
from replog.errors import KeyNotFoundError, MetastoreError, MetastoreKeyError, MetastoreUncertainError

Record = dict[str, Any]

_PAUSE_S = 0.02
_COUNTERS = 4
_LIST_CHANGES = 20  # of each task, in one list
_LISTED = 0.3  # the chance that a change is one of a list


@attrs.define
class Made:
    """What one changer did: what it knows to have been written, and what happened on the way."""

    name: str
    changes: dict[str, list[str]] = attrs.Factory(dict)  # by key
    versions: dict[str, list[int]] = attrs.Factory(dict)  # that its own changes gave to a key
    uncertain: int = 0  # answers that were lost
    written_unanswered: int = 0  # changes that were found written though no answer said so
    conflicts: int = 0
    failures: int = 0  # calls that failed without effect

    def total(self) -> int:
        return sum(map(len, self.changes.values()))


class Changer:
    """Some tasks that change records below `changes/` until they are told to stop."""

    def __init__(self, metastore: Metastore, name: str, *, tasks: int = 6, seed: int = 0) -> None:
        self.made = Made(name)
        self._metastore = metastore
        self._tasks = tasks
        self._seed = seed
        self._stopping = False

    def stop(self) -> None:
        """Each task ends the change that it is at, and then itself."""
        self._stopping = True

    async def run(self) -> None:
        """Returns once all have stopped."""
        async with trio.open_nursery() as nursery:
            for number in range(self._tasks):
                nursery.start_soon(self._run_task, f"{self.made.name}.{number}")

    async def _run_task(self, task: str) -> None:
        chance = random.Random(f"{self._seed}/{task}")
        number = 0
        while not self._stopping:
            number += 1
            change = f"{task}/{number}"
            if chance.random() < _LISTED:
                key = f"changes/lists/{number // _LIST_CHANGES}"
                await self._make(key, change, is_listed, listed)
            else:
                key = f"changes/counters/{chance.randrange(_COUNTERS)}"
                await self._make(key, change, is_counted, counted)
            self.made.changes.setdefault(key, []).append(change)

    async def _make(
        self, key: str, change: str, is_there: Callable[[Record, str], bool], edit: Callable[[Record, str], Record]
    ) -> None:
        """Makes one change exactly once."""
        may_be_there = False
        while True:
            try:
                try:
                    found = await self._metastore.get(key)
                except KeyNotFoundError:
                    version = await self._metastore.create(key, encode(edit({}, change)))
                else:
                    record = decode(found.value)
                    if is_there(record, change):
                        assert may_be_there, f"{key} has {change}, of which the metastore said that it was not written"
                        self.made.written_unanswered += 1
                        return
                    version = await self._metastore.put(key, encode(edit(record, change)), found.version)
            except MetastoreUncertainError:
                self.made.uncertain += 1
                may_be_there = True
            except MetastoreKeyError:
                self.made.conflicts += 1
                continue  # somebody else was faster: reread at once
            except MetastoreError:
                self.made.failures += 1
            else:
                self.made.versions.setdefault(key, []).append(version)
                return
            await trio.sleep(_PAUSE_S)


def encode(record: Record) -> bytes:
    return json.dumps(record).encode()


def decode(value: bytes) -> Record:
    record: Record = json.loads(value)
    return record


def is_counted(record: Record, change: str) -> bool:
    task, _, number = change.partition("/")
    return bool(record.get("last", {}).get(task) == int(number))


def counted(record: Record, change: str) -> Record:
    task, _, number = change.partition("/")
    return {"count": record.get("count", 0) + 1, "last": {**record.get("last", {}), task: int(number)}}


def is_listed(record: Record, change: str) -> bool:
    return change in record.get("items", [])


def listed(record: Record, change: str) -> Record:
    return {"items": [*record.get("items", []), change]}


async def judge(metastore: Metastore, all_made: Iterable[Made]) -> list[str]:
    """What is wrong: changes that are lost or there twice, versions that were given twice. [] if all is well."""
    all_made = list(all_made)
    changes: dict[str, list[str]] = {}
    versions: dict[str, list[int]] = {}
    for made in all_made:
        for key, found in made.changes.items():
            changes.setdefault(key, []).extend(found)
        for key, given in made.versions.items():
            versions.setdefault(key, []).extend(given)
    findings = [
        f"{key}: version {version} was given {times} times"
        for key, given in versions.items()
        for version, times in Counter(given).items()
        if times > 1
    ]
    for key, known in sorted(changes.items()):
        record = decode((await metastore.get(key)).value)
        if "items" in record:
            findings += _faults_of_list(key, record["items"], known)
        elif record["count"] != len(known):
            findings.append(f"{key}: {len(known)} changes were made, and {record['count']} are counted")
        else:
            findings += [
                f"{key}: {task} ends with {n}" for task, n in record["last"].items() if f"{task}/{n}" not in known
            ]
    return findings


def _faults_of_list(key: str, items: list[str], known: list[str]) -> list[str]:
    found = Counter(items)
    twice = [f"{key}: {change} is there {times} times" for change, times in found.items() if times > 1]
    lost = [f"{key}: {change} is lost" for change in known if change not in found]
    return twice + lost + [f"{key}: nobody made {change}" for change in found if change not in set(known)]
