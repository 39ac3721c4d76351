"""The options of all processes in these tests: short deadlines, so that what they bound is seen within seconds.

With REPLOG_TEST_METASTORE=quorum in the environment, bookies keep the metastore, in place of an LMDB file. Tests whose bookies
are all killed at once take the URL of one that runs elsewhere: `replog cluster 3` prints it.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from replog.config.client import ClientTuning
from replog.protocol.quorum import Quorum

QUORUM = Quorum(3, 3, 2)
METASTORE = os.environ.get("REPLOG_TEST_METASTORE", "lmdb")
LOG = "orders"
SILENCE_MAX_S = 2.0
TCP = {"silence_max_s": SILENCE_MAX_S}
STORAGE = "files?journal_file_bytes=4MiB"  # little to write at the start

CLIENT = ClientTuning(
    add_timeout_s=1.0,
    add_quorum_timeout_s=15.0,
    read_timeout_s=1.0,
    speculative_read_after_s=0.2,
    connect_timeout_s=1.0,
    follow_wait_s=0.5,
    takeover_timeout_s=15.0,
    recovery_timeout_s=10.0,
    bookie_retry_after_s=1.0,
    bookie_retry_after_max_s=2.0,
    roll_entries=2000,
    transports=("tcp:?" + "&".join(f"{name}={value}" for name, value in TCP.items()),),
)


def metastore_beside(directory: Path) -> str:
    """The URL of an empty metastore that outlives all bookies of a test."""
    if METASTORE.startswith("quorum:"):
        return f"{METASTORE}/{uuid.uuid4().hex[:12]}?lease_s=2"
    return f"lmdb:{directory / 'metadata'}?lease_s=30"


# What follows from them. A machine that is busy with something else gets its margin, once for each bound.
ELECTION_S = 6.0 if METASTORE == "quorum" else 0.0  # the bookie that fails may lead the metastore, too
MARGIN_S = 3.0 + ELECTION_S
NEWCOMERS_S = 2 * CLIENT.speculative_read_after_s  # two that are silent are tried before one that is not
NOTICING_S = NEWCOMERS_S + MARGIN_S  # of a connection that was lost, until the bookie is replaced
REPLACING_S = (
    CLIENT.add_timeout_s * 1.2 + NEWCOMERS_S + MARGIN_S
)  # the same of one that is silent; timeouts count in tenths
RETURNING_S = (
    CLIENT.bookie_retry_after_max_s + CLIENT.bookie_retry_after_s + REPLACING_S
)  # until a bookie is used again
TAKING_OVER_S = 2 * CLIENT.speculative_read_after_s + MARGIN_S  # with one bookie silent: a recovery, and a new ledger
GOOD_P99_S = CLIENT.add_timeout_s / 2  # at most, once a fault was dealt with: no append waits for a deadline
