"""The metastore's keys of repairs. All of them are advice: repairs that work at the same time harm nothing (M3, F6)."""

from __future__ import annotations

REPAIRERS_KEY = "repairs/workers"
"""Above the announcements of the services that repair, by their ids."""
