"""Mutants of the services that repair: of what audits skip, whom they wait for, how they share the work, and in which order."""

from tests.mutation.table import SourceMutant

_NOTES = ("tests/client/test_audit_notes.py", "tests/client/test_repair.py")
_AUDITS = ("tests/client/test_audits.py",)
_SERVICE = ("tests/repair/test_service.py",)
_PACE = ("tests/client/test_repair_pace.py", "tests/client/test_audit_notes.py")


def _mutant(tests: tuple[str, ...], name: str, rule: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(name, rule, file, old, new, why, tests)


MUTANTS = (
    _mutant(
        _NOTES,
        "note-outlives-a-restart",
        "F3",
        "client/audit_notes.py",
        "if state is None or state != self._states.get(bookie_id):",
        "if state is None or bookie_id not in self._states:",
        "an audit skips the ledgers of a bookie that lost its disk and is back",
    ),
    _mutant(
        _NOTES,
        "note-outlives-a-new-record",
        "F3",
        "client/audit_notes.py",
        "return version == known_version and all(",
        "return known_version >= 0 and all(",
        "an audit skips a ledger that has a new bookie, or gaps",
    ),
    _mutant(
        _NOTES,
        "note-of-an-older-round-counts",
        "F3",
        "client/audit_notes.py",
        "self._changed_in[bookie_id] <= noted_in for",
        "self._changed_in[bookie_id] <= self._round for",
        "a bookie was asked before it lost something, and its ledgers are skipped afterwards",
    ),
    _mutant(
        _NOTES,
        "noted-although-it-lacks",
        "F3",
        "client/auditing.py",
        "if not looked.lacking:\n            # Also",
        "if looked.is_new:\n            # Also",
        "what lacked copies once is never reported again",
    ),
    _mutant(
        _NOTES,
        "saved-note-of-an-older-round",
        "F3",
        "client/audit_notes.py",
        "if noted_in == self._round:",
        "if noted_in:",
        "what lacked nothing before a bookie lost its disk is saved with the bookie's state after it, and skipped for good",
    ),
    _mutant(
        _AUDITS,
        "audit-believes-the-record-before",
        "F5",
        "client/auditing.py",
        "if later_version == version:",
        "if later_version >= version:",
        "an audit reports as missing what was moved away or trimmed while it asked",
    ),
    _mutant(
        _AUDITS,
        "away-holds-nothing-for-good",
        "F1",
        "client/audit_report.py",
        'if each.state in ("away", "silent")',
        'if each.state in ("silent",)',
        "entries are called gone that a bookie brings back when it is started again",
    ),
    _mutant(
        _AUDITS,
        "differing-copies-untold",
        "F3",
        "client/repair.py",
        "if filled.differing:",
        "if filled.differing and filled.replaced:",
        "nobody learns that two copies differ",
    ),
    _mutant(
        _SERVICE,
        "away-is-replaced-at-once",
        "F1",
        "repair/service.py",
        "now_s - since_s[each] >= self._times.away_after_s",
        "now_s - since_s[each] >= 0",
        "a restart costs as much as a lost disk",
    ),
    _mutant(
        _SERVICE,
        "absences-add-up",
        "F1",
        "repair/service.py",
        "            del self._away_since_s[bookie_id]\n",
        "            pass\n",
        "the second restart of a bookie has it replaced",
    ),
    _mutant(
        _SERVICE,
        "share-is-everything",
        "M3",
        "repair/shares.py",
        "        if len(self._seeds) == 1:",
        "        if self._seeds:",
        "each of five bookies audits and copies everything",
    ),
    _mutant(
        _SERVICE,
        "share-of-the-dead",
        "M3",
        "repair/service.py",
        "        share = await self._shares.current()\n",
        '        share = self.__dict__["kept"] = self.__dict__.get("kept") or await self._shares.current()\n',
        "nobody takes over the ledgers of a service that has ended",
    ),
    _mutant(
        _PACE,
        "paused-in-vain",
        "F6",
        "client/repair.py",
        "is_replaced = not await self.pause.is_on() and await",
        "is_replaced = await",
        "an operator cannot stop repairs that are in the way",
    ),
    _mutant(
        _PACE,
        "least-endangered-first",
        "F1",
        "client/repair.py",
        "key=lambda each: (each.copies_left, each.ledger_id",
        "key=lambda each: (-each.copies_left, each.ledger_id",
        "the last copy of an entry waits behind a thousand ledgers that have two",
    ),
    _mutant(
        _PACE,
        "room-without-end",
        "W6",
        "client/repair_pace.py",
        "            await self._waiting.park()\n",
        "            break\n",
        "all copies wait before an append at once",
    ),
    _mutant(
        ("tests/client/test_audit_notes.py",),
        "wrong-zone-stays",
        "F1",
        "client/repair.py",
        "for each in before.misplaced]",
        "for each in before.misplaced if before.lacking]",
        "copies that are all there, and in a wrong zone, stay where they are until that zone is lost",
    ),
    _mutant(
        ("tests/protocol/test_releasing.py", "tests/bookie/test_releasing.py"),
        "own-copies-dropped",
        "F5",
        "protocol/releasing.py",
        "if bookie_id in fragment.ensemble:",
        "if bookie_id in fragment.ensemble[:-1]:",
        "a bookie drops what the record names it for",
    ),
)
