"""Scrubbing: everything stored is read and checked from time to time, so that damage is found while other copies are whole."""

from __future__ import annotations

from collections.abc import Callable

from replog.backends.files.background_pace import Closing, Pace
from replog.backends.files.fetching import DamagedBatch, read_checked
from replog.backends.files.index import SectionGone
from replog.backends.files.log_file import LogFile, Section
from replog.backends.files.open_parts import Contents
from replog.errors import StorageUncertainError


class Scrubber:
    """Reads all files, the oldest first. Calls `between` from time to time, as `Rewriter` does."""

    def __init__(self, contents: Contents, between: Callable[[], None]) -> None:
        self._contents = contents
        self._between = between
        self.scrubs = 0
        self.scrubbed_bytes = 0

    def run(self, pace: Pace) -> None:
        """One round over all files that exist when it begins. Called without a lock. Raises `Closing`.

        `contents.damages` has what it finds."""
        contents = self._contents
        with contents.changed:
            files = sorted(contents.files(), key=lambda file: file.age)
        for file in files:
            self._scrub(file, pace)
        self.scrubs += 1

    def _scrub(self, file: LogFile, pace: Pace) -> None:
        contents = self._contents
        with contents.changed:
            if contents.closing.is_set():
                raise Closing
            if contents.journals.get(file.number) is not file and contents.entry_logs.get(file.number) is not file:
                return  # removed meanwhile
            try:
                contents.descriptors.pin([file], wait=True)
            except StorageUncertainError:
                return  # noted in the file; each read of it raises
            sections = list(file.sections)
        try:
            for section in sections:
                self._scrub_section(section, pace)
        finally:
            with contents.changed:
                contents.descriptors.unpin([file])

    def _scrub_section(self, section: Section, pace: Pace) -> None:
        contents = self._contents
        try:
            if section.file.is_indexed:
                # Even if the page is in memory: scrubbing is about the one on the disk.
                contents.load_page(section)
            pages = contents.pages_of([section])
        except SectionGone:
            return
        except StorageUncertainError:
            return  # noted: the index will be written again
        with contents.changed:
            page = pages[section]
            batches = [(page.identity(at), section.location(page, at)) for at in range(len(page))]
        for (first, last, _), location in batches:
            try:
                read_checked(contents.disk, location)
            except DamagedBatch as error:
                contents.damages.note(error, section.ledger_id, section.stamp, (first, last))
            self.scrubbed_bytes += location.size
            if pace.spend(location.size):
                self._between()
