"""Mutants of archives: of archiving, of reading there, of recalls, and of the collection of objects."""

from tests.mutation.table import SourceMutant

_TESTS = ("tests/repair/test_archiving.py", "tests/repair/test_archived_ledgers.py")


def _mutant(name: str, rule: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(name, rule, file, old, new, why, _TESTS)


MUTANTS = (
    _mutant(
        "objects-not-read-back",
        "F5",
        "repair/archiver.py",
        "            await read_back(stored)\n",
        "",
        "bookies drop their copies although the store has other bytes",
    ),
    _mutant(
        "named-before-it-is-stored",
        "F5",
        "protocol/archiving.py",
        "        if is_all and not self._batches and not self._storing:\n",
        "        if is_all:\n",
        "the record names a copy whose last object never comes",
    ),
    _mutant(
        "archived-is-kept",
        "F5",
        "protocol/releasing.py",
        "if bookie_id in fragment.ensemble and not fragment.archive:",
        "if bookie_id in fragment.ensemble:",
        "disks stay full of what is archived",
    ),
    _mutant(
        "recalled-in-part",
        "F1",
        "protocol/filling.py",
        "        if fragment.archive and len(self._whole) < self.quorum.ensemble:\n            return metadata\n",
        "",
        "the record names bookies that lack copies, and the archive no more",
    ),
    _mutant(
        "old-copy-is-named",
        "F6",
        "repair/archiver.py",
        "        if is_gone or now_s - min(each.modified_at_s for _, each in objects) > NAMED_FOR_S:",
        "        if False:",
        "a collection deletes objects that the record is about to name",
    ),
    _mutant(
        "young-objects-collected",
        "F6",
        "repair/archive_objects.py",
        "            if found.youngest_s > before_s:",
        "            if False:",
        "the objects of an archiving under way are deleted",
    ),
    _mutant(
        "collects-beside-late-requests",
        "F6",
        "repair/archive_objects.py",
        "            return None if self._stays_in(metadata, copy) else metadata\n",
        "            return None\n",
        "an archiver whose machine slept names objects that were deleted meanwhile, and bookies drop the entries",
    ),
    _mutant(
        "collects-on-any-word",
        "B6a",
        "repair/archive_objects.py",
        "        await check_metastore(ledgers.records, ledgers.context.membership)\n",
        "",
        "a metastore that went back has the objects of all its ledgers deleted",
    ),
    _mutant(
        "cookie-not-compared",
        "B4",
        "client/archives.py",
        "        if cookie == self.record.cookie():",
        "        if True:",
        "a wiped bucket, or another cluster's, is written to",
    ),
    _mutant(
        "lost-cookie-replaced",
        "B4",
        "client/archives.py",
        "        if record.is_unfinished and await opened.cookie() is None:",
        "        if await opened.cookie() is None:",
        "an archive whose directory is not mounted is begun again, and takes entries that the mount hides",
    ),
    _mutant(
        "half-added-before-whole",
        "B4",
        "client/archives.py",
        "            if not each.is_unfinished:\n                return each\n",
        "            return each\n",
        "a client that was killed while it added an archive lets others begin it again where its directory is not mounted",
    ),
    _mutant(
        "cookie-not-compared-again",
        "B4",
        "repair/archiver.py",
        "        await archive.check()\n        now_s",
        "        now_s",
        "a directory that is mounted no more takes entries, which bookies drop then",
    ),
    _mutant(
        "trimmed-objects-stay",
        "L7",
        "client/unbounded.py",
        "    await context.delete_archived(known, left)\n",
        "",
        "each trim leaves objects in the bucket",
    ),
    _mutant(
        "lost-archived-at-risk",
        "B8a",
        "repair/losses.py",
        "        if fragment.archive:\n            continue\n",
        "",
        "an operator is asked to accept a loss that is none",
    ),
    _mutant(
        "bookies-hinder-each-other",
        "F5",
        "bookie/releasing.py",
        "            for _ in range(_TRIES_MAX):",
        "            for _ in range(1):",
        "of bookies that drop archived copies at once, all but one keep theirs until their next garbage collection",
    ),
)
