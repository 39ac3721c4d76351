"""Mutants of what bookies know of the revisions of records (M5)."""

from tests.mutation.table import SourceMutant

_TESTS = (
    "tests/client/test_outdated_records.py",
    "tests/bookie/test_releasing.py",
    "tests/client/test_record_watch.py",
)


def _mutant(name: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(name, "M5", file, old, new, why, _TESTS)


MUTANTS = (
    _mutant(
        "old-record-recovers",
        "protocol/bookie.py",
        "        if request.revision < self.revision and request.revision and not is_of_writer(request):\n",
        "        if False:\n",
        "by a record that went back alone the ledger is closed before its last confirmed entry",
    ),
    _mutant(
        "revision-not-kept",
        "protocol/bookie.py",
        "        new_revision = request.revision if request.revision > self.revision else None\n",
        "        new_revision, self.revision = None, max(self.revision, request.revision)\n",
        "after a restart the bookie takes part in a recovery by a record that went back",
    ),
    _mutant(
        "writer-tells-no-revision",
        "client/sending.py",
        "                    self._machine.metadata.revision,\n",
        "                    0,\n",
        "bookies learn of a replaced bookie only once the ledger is repaired or recovered",
    ),
    _mutant(
        "claim-looks-newer",
        "protocol/machine.py",
        "self.metadata.revision + (not is_claim)",
        "self.metadata.revision + 1",
        "the second recovery by a record that went back succeeds, since the first one has raised it",
    ),
    _mutant(
        "outdated-is-final",
        "client/ledgers.py",
        "        return found.revision > known.revision\n",
        "        return False\n",
        "a recovery fails because another one has replaced a bookie meanwhile",
    ),
    _mutant(
        "confirmed-record-stays-refused",
        "bookie/server.py",
        "            if not self.guard.knows_revisions(ledger_id):\n                marks = attrs.evolve(marks, revision=0)\n",
        "",
        "after a restore without anything newer, ledgers can never be recovered once their bookies were restarted",
    ),
    _mutant(
        "released-by-an-older-record",
        "bookie/releasing.py",
        "metadata.revision < marks.revision and",
        "False and",
        "a bookie drops the last copies because a record that went back does not name it",
    ),
)
