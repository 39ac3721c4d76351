"""A fragment: the span of a ledger's entries that one ensemble stores."""

from __future__ import annotations

import attrs

WRITER_TERM = 1  # of the client that created a bounded ledger (T2)


@attrs.frozen
class Fragment:
    """The entries from `first_entry_id` to the next fragment are stored on this ensemble, by index.

    `term` is the stamp of the entries in it: that of the writer that first wrote them (T3). `archive` is "" unless the entries
    are in an archive, as `ID/COPY`: the archive's id, and the name of the copy there. Then the ensemble is history, and bookies
    drop their copies (F5)."""

    first_entry_id: int
    ensemble: tuple[str, ...]
    term: int = WRITER_TERM
    archive: str = ""

    @property
    def archive_id(self) -> str:
        """The id of the archive that has the entries; "" if none has."""
        return self.archive.partition("/")[0]
