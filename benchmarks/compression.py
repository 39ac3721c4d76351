"""Compression: three embedded bookies with files; text, JSON and random data, each written and read with it and without.

What it saves on the bookies' disks, what it costs of the processor, writer, bookies and reader together, and what rates come of
that. The words of the text are drawn as often as in a language: few very often, most of them seldom.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import trio

import replog
from benchmarks.figures import Figures, clock
from benchmarks.loads import LOG
from benchmarks.setting import Comparison, Round, Setting
from replog.protocol.compression import COMPRESSIONS

_ENTRIES = 500  # in each call
_CALLS_MIN = 4
_WORDS = 5000


def _text(chance: random.Random) -> list[bytes]:
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    weights = [1 / (place + 1) for place in range(len(letters))]
    words = ["".join(chance.choices(letters, weights, k=chance.randint(2, 9))) for _ in range(_WORDS)]
    often = [1 / (place + 1) for place in range(_WORDS)]
    return [" ".join(chance.choices(words, often, k=60)).encode() for _ in range(_ENTRIES)]


def _json(chance: random.Random) -> list[bytes]:
    states = ["new", "paid", "shipped", "returned"]
    found = []
    for number in range(_ENTRIES):
        fields = {"order": number, "customer": chance.randrange(100_000), "amount": chance.randrange(100_000) / 100}
        found.append(json.dumps(fields | {"state": chance.choice(states), "at_ns": chance.randrange(1 << 60)}).encode())
    return found


def _random(chance: random.Random) -> list[bytes]:
    return [chance.randbytes(1024) for _ in range(_ENTRIES)]


_KINDS: dict[str, Callable[[random.Random], list[bytes]]] = {"text": _text, "json": _json, "random": _random}


def _stored_bytes(client: replog.Client) -> float:
    return sum(bookie.statistics()["committed_bytes"] for bookie in client.bookies)


async def _measured(directory: Path, compression: str, entries: list[bytes], seconds: float) -> Figures:
    async with replog.embed(directory, bookies=3, storage="files") as client:
        before_bytes, calls = _stored_bytes(client), 0
        started_s, started_cpu_s = clock(), time.process_time()
        async with client.write_log(LOG, options=replog.LogOptions(compression=compression)) as log:
            while calls < _CALLS_MIN or clock() - started_s < seconds:
                await log.extend(entries)
                calls += 1
        wrote_s, wrote_cpu_s = clock() - started_s, time.process_time() - started_cpu_s
        stored_bytes = _stored_bytes(client) - before_bytes
        started_s, started_cpu_s, found = clock(), time.process_time(), 0
        async with client.read_log(LOG) as reader:
            async for batch in reader.batches():
                found += len(batch.payloads())
        read_s, read_cpu_s = clock() - started_s, time.process_time() - started_cpu_s
    count = calls * len(entries)
    assert found == count, "all that was written is read"
    return {
        "stored_bytes": stored_bytes / count,
        "write_per_s": count / wrote_s,
        "write_cpu_us": 1e6 * wrote_cpu_s / count,
        "read_per_s": count / read_s,
        "read_cpu_us": 1e6 * read_cpu_s / count,
    }


def compression(setting: Setting) -> Round:
    """Each kind of data with each kind of compression."""
    found: dict[str, Figures] = {}
    for kind, make in _KINDS.items():
        entries = make(random.Random(os.urandom(8)))
        for name in COMPRESSIONS:
            with tempfile.TemporaryDirectory(dir=setting.directory) as directory:
                found[f"{kind} {name}"] = trio.run(
                    _measured, Path(directory), name, entries, setting.seconds / len(_KINDS)
                )
    return found


CASES = {"compression": compression}
_SAID = {
    "stored_bytes": "stored",
    "write_per_s": "written",
    "write_cpu_us": "  its CPU",
    "read_per_s": "read",
    "read_cpu_us": "  its CPU",
}
COMPARISONS = tuple(
    Comparison(
        "compression",
        f"{kind}, {said}, zstd against none",
        f"{kind} zstd",
        f"{kind} none",
        figure,
        figure,
        "entries/s" if figure.endswith("per_s") else "us" if figure.endswith("_us") else "bytes",
        at_least=figure.endswith("per_s"),
    )
    for kind in _KINDS
    for figure, said in _SAID.items()
)
