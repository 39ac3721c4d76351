"""What a bookie's storage costs by itself, called as a bookie calls it: the cases `storage-...`."""

from __future__ import annotations
