"""Mutants of back-ups: of what points into a log, and must land inside (V1)."""

from tests.mutation.table import SourceMutant

_TESTS = ("tests/backup/test_machines.py", "tests/machine/test_snapshots.py", "tests/backup/test_backup.py")


def _mutant(name: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(f"back-up-{name}", "V1", file, old, new, why, _TESTS)


MUTANTS = (
    _mutant(
        "not-again",
        "backup/saving.py",
        "        if found.problem is not None:\n            found = await self._again(machine, found)\n",
        "",
        "a trim between the snapshots and the log leaves a hole that no member can cross",
    ),
    _mutant(
        "trims-go-on",
        "machine/saving.py",
        "        if await self._metastore.announced(log_backups_key_path(self._name)):\n            return\n",
        "",
        "a leader that saves snapshots often outruns each back-up",
    ),
    _mutant(
        "begin-unseen",
        "backup/joining.py",
        "    if (commands.trimmed_to or Position(commands.first_segment_number, 0)) > behind(position):\n",
        "    if False:\n",
        "commands between the snapshot and the log are missing, and verify says nothing",
    ),
    _mutant(
        "end-unseen",
        "backup/joining.py",
        "    if commands.last_segment_number < position.segment:\n",
        "    if False:\n",
        "new commands get positions that the snapshot counts as applied",
    ),
    _mutant(
        "empty-log-is-joined",
        "backup/joining.py",
        "        if commands.has_beginning:\n            return None\n",
        "        return None\n",
        "a trimmed log without a whole snapshot begins again at nothing",
    ),
    _mutant(
        "hint-is-believed",
        "backup/joining.py",
        "                        found.add(payload)\n",
        "                        found.position = Position.parse(ledger.head.custom.get('position', '1:0'))\n",
        "half a snapshot counts as one",
    ),
    _mutant(
        "beginning-forgotten",
        "backup/restoring.py",
        "            log.begun_with_number,\n",
        "            log.first_segment_number,\n",
        "a restored machine whose snapshots are lost begins anew, without an error",
    ),
    _mutant(
        "snapshots-restored-first",
        "backup/joining.py",
        "key=lambda name: (machine_name(name), len(name))",
        "key=lambda name: (machine_name(name), -len(name))",
        "a member that starts between the two logs begins the machine's log anew",
    ),
    _mutant(
        "partner-left-out",
        "backup/joining.py",
        "(machine, snapshots_name(machine)) if each in manifest.logs",
        "(machine,) if each in manifest.logs",
        "a machine's log is restored without its snapshots",
    ),
    _mutant(
        "names-listed-once",
        "backup/saving.py",
        "        for _ in range(_LISTINGS_MAX):\n            names = set(",
        "        for _ in range(1):\n            names = set(",
        "a log that is made meanwhile, as a machine's first snapshot, is not in the back-up",
    ),
    _mutant(
        "cursor-outside",
        "backup/saving.py",
        "{each.name: min(each.begins_at, end) for each",
        "{each.name: each.begins_at for each",
        "a cursor points behind what was saved, and later records there are never worked off",
    ),
    _mutant(
        "numbers-below-snapshot",
        "backup/restoring.py",
        "first_segment_number=position.segment + 1,",
        "first_segment_number=log.first_segment_number,",
        "new commands get positions that the snapshot counts as applied",
    ),
)
