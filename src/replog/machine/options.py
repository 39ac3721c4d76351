"""The options of members of a state machine."""

from __future__ import annotations

import attrs

from replog.config import Checked, at_least, option, positive


@attrs.frozen(kw_only=True)
class MachineOptions(Checked):
    """How a member serves, follows and calls. All members of one machine should have the same ones."""

    call_timeout_s: float = option(
        30.0, "How long a call or a read may take before it raises `CommandTimeoutError`.", positive
    )
    session_timeout_s: float = option(
        60.0, "After how long without a sign of life from its caller a session is ended by the leader.", positive
    )
    repeat_after_s: float = option(
        3.0, "How long a leader may be silent before its callers look for the leader again.", positive
    )
    calls_at_once_max: int = option(
        4096, "Commands that one member may have under way; further ones wait.", at_least(1)
    )
    calls_bytes_max: int = option(
        64 << 20, "Bytes of requests that one member may have under way; further ones wait.", positive
    )
    check_every: int | None = option(
        10_000, "After how many commands the members compare hashes of their states; none: never.", positive
    )
    snapshot_every: int | None = option(
        100_000, "After how many commands the leader saves a snapshot, and trims the log; none: never.", positive
    )
