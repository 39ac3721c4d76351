"""Orders over HTTP. A 201 means that the order survives kill -9.

ORDERS=DIRECTORY uvicorn examples.fastapi_orders:app            one process, which keeps the entries itself
ORDERS=DIRECTORY WORKERS_SHARE=1 uvicorn --workers 2 ...        several, beside: python examples/web_host.py DIRECTORY
"""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import fastapi
import pydantic

import replog
from replog import aio

DIRECTORY = os.environ["ORDERS"]
ONE = replog.Quorum(ensemble=1, write=1, ack=1)  # there is one bookie


class Order(pydantic.BaseModel):
    id: str = pydantic.Field(max_length=100)
    item: str = pydantic.Field(max_length=1000)


@asynccontextmanager
async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
    is_shared = "WORKERS_SHARE" in os.environ
    opening = aio.connect(f"lmdb:{DIRECTORY}/metadata", quorum=ONE) if is_shared else aio.embed(DIRECTORY)
    app.state.name = f"orders-{take_slot()}"
    async with opening as app.state.client, app.state.client.write_log(app.state.name) as app.state.log:
        yield


def take_slot() -> int:
    """The lowest number that no living process has: a log has one writer, so each worker has a log of its own."""
    os.makedirs(DIRECTORY, exist_ok=True)
    for number in itertools.count():
        slot = os.open(f"{DIRECTORY}/slot-{number}", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the process ends, however it ends
        except BlockingIOError:
            os.close(slot)
        else:
            return number
    raise AssertionError


app = fastapi.FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def order(order: Order) -> dict[str, object]:
    position = await app.state.log.append(order.model_dump_json().encode())
    return {"log": app.state.name, "position": str(position), "worker": os.getpid()}


@app.get("/orders")
async def all_orders() -> list[Order]:
    found = []
    for name in await app.state.client.logs():
        async with app.state.client.read_log(name) as reader:
            found += [(record.timestamp, record.data) async for record in reader]
    return [Order.model_validate_json(data) for _, data in sorted(found)]


@app.exception_handler(replog.ReplogError)
async def in_doubt(request: fastapi.Request, error: replog.ReplogError) -> fastapi.responses.JSONResponse:
    """The writer may have ended: so does this process, and the next one opens another writer."""
    signal.raise_signal(signal.SIGTERM)
    return fastapi.responses.JSONResponse({"error": str(error), "outcome": "unknown"}, 503)
