"""A process that creates, puts, deletes, reads and lists a few keys, and writes down each call with its times:
`python history_client.py URL FILE SEED CALLS`."""

from __future__ import annotations

import json
import random
import sys
import time

import trio

from replog.abc import Metastore
from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    MetastoreError,
    MetastoreUncertainError,
    VersionConflictError,
)
from replog.registry import Registry

KEYS = ("keys/a", "keys/b/c")


async def call(metastore: Metastore, what: str, key: str, value: bytes, expected: int | None) -> dict[str, object]:
    """The answer, as the judge has it; None if the outcome is unknown."""
    try:
        match what:
            case "create":
                return {"answer": await metastore.create(key, value)}
            case "put":
                return {"answer": await metastore.put(key, value, expected or 1)}
            case "delete":
                await metastore.delete(key, expected)
                return {"answer": 0}
            case "get":
                found = await metastore.get(key)
                return {"answer": found.version, "value": found.value.decode()}
            case _:
                return {"answer": 0, "words": await metastore.children(key)}
    except KeyExistsError:
        return {"answer": "exists"}
    except KeyNotFoundError:
        return {"answer": "missing"}
    except VersionConflictError:
        return {"answer": "conflict"}
    except MetastoreUncertainError:
        return {"answer": None}
    except MetastoreError:
        return {"answer": "unavailable"}  # it says that nothing was written


async def run(url: str, path: str, seed: str, calls: int) -> None:
    entropy, versions = random.Random(seed), dict[str, int]()
    metastore = Registry().open_metastore(url)
    with open(path, "a", buffering=1) as file:  # noqa: ASYNC230 - a line is written faster than a thread is asked
        for number in range(calls):
            what = entropy.choice(["create", "create", "put", "put", "delete", "get", "children"])
            key = entropy.choice(KEYS)
            if what == "children":
                key = key.rpartition("/")[0]
            expected = versions.get(key) if what == "put" or entropy.random() < 0.5 else None
            value = f"{seed}-{number}"
            began_s = time.monotonic()
            found = await call(metastore, what, key, value.encode(), expected if what in ("put", "delete") else None)
            line = {"what": what, "key": key, "begun_s": began_s, "ended_s": time.monotonic(), "value": value, **found}
            line["expected"] = (expected or 1) if what == "put" else expected if what == "delete" else None
            file.write(json.dumps(line) + "\n")
            if what in ("create", "put", "get") and isinstance(found["answer"], int):
                versions[key] = found["answer"]
    await metastore.aclose()


if __name__ == "__main__":
    trio.run(run, sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
