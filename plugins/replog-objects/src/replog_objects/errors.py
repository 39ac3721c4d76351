"""How a call to a bucket can fail, beside what `replog.errors` has."""

from __future__ import annotations

from replog.errors import MetastoreError


class BucketRefusedError(MetastoreError):
    """The store refuses: credentials that expired or may not, a bucket that is missing, a store without conditional puts. Retry:
    after correcting the cause, which it names. Outcome: not written."""
