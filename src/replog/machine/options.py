"""The options of members of a state machine."""

from __future__ import annotations

import attrs

from replog.config import Checked, at_least, option, positive


@attrs.frozen(kw_only=True)
class MachineOptions(Checked):
    """How a member serves, follows and calls. All members of one machine should have the same ones."""

    session_timeout_s: float = option(
        60.0, "After how long without a sign of life from its caller a session is ended by the leader.", positive
    )
    snapshot_every: int | None = option(
        100_000, "After how many commands the leader saves a snapshot, and trims the log; none: never.", positive
    )


@attrs.frozen(kw_only=True)
class MachineTuning(MachineOptions):
    """A member's options, and beside them the constants of members. No configuration sets these; tests do, to be quick."""

    # A takeover, and some seconds of calls that wait behind it. A program with less time leaves by its event loop's timeout.
    call_timeout_s: float = option(
        30.0, "How long a call or a read may take before it raises `CommandTimeoutError`.", positive
    )
    # A hash takes as long as a snapshot. Ten of them for each snapshot find members that differ before one is kept.
    check_every: int | None = option(
        10_000, "After how many commands the members compare hashes of their states; none: never.", positive
    )
    # A leader answers, or says that it is alive, every second: three missed ones are a leader that is gone.
    repeat_after_s: float = option(
        3.0, "How long a leader may be silent before its callers look for the leader again.", positive
    )
    # Enough to fill the batches of a log; more only wait in the leader instead of here.
    calls_at_once_max: int = option(
        4096, "Commands that one member may have under way; further ones wait.", at_least(1)
    )
    # What a writer may have in flight: more would wait for the log instead.
    calls_bytes_max: int = option(
        64 << 20, "Bytes of requests that one member may have under way; further ones wait.", positive
    )


def tuned(options: MachineOptions) -> MachineTuning:
    """The options with the constants."""
    if isinstance(options, MachineTuning):
        return options
    return MachineTuning(**{each.name: getattr(options, each.name) for each in attrs.fields(MachineOptions)})
