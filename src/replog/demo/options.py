"""The log of the demonstration, and how its clients treat it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from replog.config import ClientOptions
from replog.demo.input import LINE_BYTES_MAX
from replog.protocol.quorum import Quorum

LOG_NAME = "demo"
QUORUM = Quorum(ensemble=3, write=3, ack=2)
BOOKIES_MIN = QUORUM.ensemble  # one is killed, and the others go on: three survive one
ROLL_BYTES = 8 << 20  # small ledgers, so that a takeover meets a log of several

# How long one bookie may be silent: so long an append can stall at most, and it is what people would wait for.
SILENCE_MAX_S = 2.0


def client_options(roll_bytes: int | None = None) -> ClientOptions:
    """A budget that keeps the log busy and a failure's doubt small, and deadlines that can be waited for."""
    return ClientOptions(
        in_flight_bytes_max=2 * LINE_BYTES_MAX,
        batch_bytes_max=1 << 18,
        roll_bytes=roll_bytes,
        add_timeout_s=SILENCE_MAX_S,
        read_timeout_s=SILENCE_MAX_S,
        connect_timeout_s=SILENCE_MAX_S,
    )


def metastore_url(directory: Path) -> str:
    """The metastore's place in the demonstration's directory."""
    return f"lmdb:{quote(str(directory / 'metadata'))}"
