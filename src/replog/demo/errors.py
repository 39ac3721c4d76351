"""What may go wrong with the demonstration itself."""

from __future__ import annotations

from replog.errors import ReplogError


class DemoFailedError(ReplogError):
    """An act did not happen as planned: a leader died by itself, or nothing moved any more. Says nothing of the log.
    Retry: yes. With `--keep` its files can be looked at."""
