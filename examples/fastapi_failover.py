"""Orders over HTTP, taken by one of several servers: when it dies or is deposed, the next one goes on. A 201 means that the order
survives kill -9.

METASTORE=lmdb:DIRECTORY/metadata uvicorn --port 8001 examples.fastapi_failover:app    and so on, each with a port of its own,
beside bookies: python examples/web_host.py DIRECTORY. `GET /leading` answers 200 where orders are taken, else 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import Annotated

import fastapi
import pydantic

import replog
from replog import aio

BOOKIES = int(os.environ.get("BOOKIES", "1"))
QUORUM = replog.Quorum(ensemble=BOOKIES, write=BOOKIES, ack=BOOKIES // 2 + 1)
AGAIN_S = 0.5


class Order(pydantic.BaseModel):
    id: str = pydantic.Field(max_length=100)
    item: str = pydantic.Field(max_length=1000)


async def compete(app: fastapi.FastAPI) -> None:
    """Leads whenever it is this process's turn, until cancelled."""
    while True:
        try:
            async with app.state.client.lead_log(
                "orders"
            ) as log:  # waits for its turn, and fences the leader before it
                print(f"leads from segment {log.segment}", flush=True)
                app.state.log = log
                await log.wait_ended()  # raises at once when another one takes over, even if no order comes
        except replog.FencedError as error:
            print(f"deposed, {len(error.positions)} in doubt", flush=True)
        except replog.TransientError as error:
            print(f"competes again, since {error}", flush=True)
            await asyncio.sleep(AGAIN_S)
        finally:
            app.state.log = None


def leave(task: asyncio.Task[None]) -> None:
    """What does not pass by waiting ends the process, and its supervisor says so."""
    if not task.cancelled() and task.exception() is not None:
        signal.raise_signal(signal.SIGTERM)


@contextlib.asynccontextmanager
async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
    app.state.log = None
    async with aio.connect(os.environ["METASTORE"], quorum=QUORUM) as app.state.client:
        competing = asyncio.create_task(compete(app))
        competing.add_done_callback(leave)
        try:
            yield
        finally:
            competing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await competing  # leaves the log, so that the next one leads at once


app = fastapi.FastAPI(lifespan=lifespan)


def leading() -> aio.LogWriter:
    if app.state.log is None:
        raise fastapi.HTTPException(503, "another server takes orders now; nothing was written")
    log: aio.LogWriter = app.state.log
    return log


Leading = Annotated[aio.LogWriter, fastapi.Depends(leading)]


@app.get("/leading")
async def is_leading(log: Leading) -> dict[str, int]:
    return {"segment": log.segment, "worker": os.getpid()}


@app.post("/orders", status_code=201)
async def order(order: Order, log: Leading) -> dict[str, object]:
    position = await log.append(order.model_dump_json().encode())
    return {"log": log.name, "position": str(position), "worker": os.getpid()}


@app.exception_handler(replog.ReplogError)
async def in_doubt(request: fastapi.Request, error: replog.ReplogError) -> fastapi.responses.JSONResponse:
    """The order may be kept or not. `compete` hears of the writer's end by itself."""
    return fastapi.responses.JSONResponse({"error": str(error), "outcome": "unknown"}, 503)
