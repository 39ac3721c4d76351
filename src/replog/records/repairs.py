"""The metastore's keys of repairs. All of them are advice: repairs that work at the same time harm nothing (M3, F6)."""

from __future__ import annotations

REPAIRERS_KEY = "repairs/workers"
"""Above the announcements of the services that repair, by their ids."""

PAUSED_KEY = "repairs/paused"
"""While this key exists, repairs copy nothing. It is created and deleted, and never changed."""

PAUSED_VALUE = b'{"format": 1}\n'
