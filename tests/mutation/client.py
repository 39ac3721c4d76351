"""Mutants of the client."""

from tests.mutation.table import SourceMutant

_FIRST = {
    "backlog.py": ("tests/client/test_writer.py", "tests/client/test_without_tasks.py"),
    "late_adds.py": ("tests/client/test_late_adds.py",),
    "entries.py": ("tests/client/test_entries.py",),
    "ledger_reader.py": ("tests/client/test_reader.py",),
    "ledger_records.py": (
        "tests/client/test_records.py",
        "tests/client/test_ids.py",
        "tests/bookie/test_metastore_guard.py",
        "tests/client/test_silent_metastore.py",
    ),
    "entry_writer.py": (
        "tests/client/test_writer.py",
        "tests/client/test_without_tasks.py",
        "tests/client/test_late_adds.py",
    ),
    "ledger_writer.py": (
        "tests/client/test_writer.py",
        "tests/client/test_without_tasks.py",
        "tests/client/test_late_adds.py",
    ),
    "ledgers.py": ("tests/client/test_recovering.py", "tests/client/test_reader.py"),
    "recovering.py": ("tests/client/test_recovering.py",),
    "scan.py": ("tests/client/test_reader.py",),
    "record_watch.py": ("tests/client/test_record_watch.py",),
    "sending.py": ("tests/client/test_writer.py", "tests/client/test_ensemble_change.py"),
    "writer_background.py": (
        "tests/client/test_writer.py",
        "tests/client/test_lagging.py",
        "tests/client/test_silent_metastore.py",
    ),
}
_THEN = ("tests/client", "tests/simulator/shells")


def _mutant(name: str, rule: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(name, rule, f"client/{file}", old, new, why, (*_FIRST[file], *_THEN))


_CONTINUED = ("tests/runtime/test_continued_call.py",)
_EDITING = ("tests/records/test_editing.py", "tests/client/test_records.py")

MUTANTS = (
    _mutant(
        "older-record-is-good",
        "W9",
        "record_watch.py",
        "        if found.revision < known.revision or",
        "        if",
        "a writer goes on confirming after its record went back",
    ),
    _mutant(
        "silent-metastore-is-a-bad-look",
        "W9",
        "record_watch.py",
        "        except MetastoreError:\n            return\n",
        "        except MetastoreError as error:\n            problem = str(error)\n",
        "an outage of the metastore stops every writer",
    ),
    _mutant(
        "record-of-another-creation-is-good",
        "M5",
        "record_watch.py",
        "        if found.creation != known.creation:\n",
        "        if False:\n",
        "a writer goes on confirming into a ledger that another one has replaced",
    ),
    _mutant(
        "ids-given-out-again",
        "M5",
        "ledger_records.py",
        "        lowest = max(_FIRST_ID, self._records.ids_from())\n",
        "        lowest = _FIRST_ID\n",
        "older metadata gives out ids again that bookies have entries of",
    ),
    _mutant(
        "found-record-is-own",
        "M1",
        "ledger_records.py",
        "if found.token == metadata.token:",
        "if found:",
        "a ledger that somebody else created under this id is written as if it was one's own",
    ),
    _mutant(
        "failed-create-is-final",
        "M1",
        "ledger_records.py",
        "except (MetastoreUncertainError, KeyExistsError) as error:",
        "except KeyExistsError as error:",
        "a create whose answer was lost is reported as failed, though it happened",
    ),
    _mutant(
        "conflict-is-written",
        "M1",
        "ledger_records.py",
        "machine.metadata_conflict()",
        "machine.metadata_written(effect.expected + 1)",
        "a CAS that lost counts as one that won",
    ),
    _mutant(
        "uncertain-is-unchanged",
        "M1",
        "ledger_records.py",
        (
            "                except MetastoreUncertainError:\n                    raise\n"
            "                except MetastoreError as error:\n"
        ),
        "                except MetastoreError as error:\n",
        "a change whose answer was lost is made again instead of being resolved",
    ),
    _mutant(
        "cut-short-is-unchanged",
        "M1",
        "ledger_records.py",
        "if last is None or is_under_way:  # a call was cut short: what it did is unknown",
        "if False:",
        "a change that was cut short at its deadline is reported as not made",
    ),
    _mutant(
        "ids-overlap",
        "M2",
        "ledger_records.py",
        'b"%d" % (first + count), found.version)',
        'b"%d" % (first + 1), found.version)',
        "who takes several ids at once leaves all but the first to others, too",
    ),
    _mutant(
        "uncertain-ids-used",
        "M2",
        "ledger_records.py",
        "await self._records.pause(deadline_s, error)",
        "return range(_parse((await self._records.metastore.get(NEXT_LEDGER_ID_KEY)).value), 1 << 20)",
        "ids are used though nobody knows whether they were taken",
    ),
    _mutant(
        "woken-is-confirmed",
        "W2",
        "backlog.py",
        "while self._waiting and self._waiting[0][0] <= confirmed:",
        "while self._waiting and self._waiting[0][0] <= confirmed + 1:",
        "an append is woken before its entry is confirmed",
    ),
    _mutant(
        "append-fails-silently",
        "W4",
        "ledger_writer.py",
        (
            "        if self._entries.backlog.confirmed < entry_id:\n"
            "            self._entries.check_usable()\n"
            "        return entry_id\n"
            "\n"
            "    async def extend"
        ),
        "        return entry_id\n\n    async def extend",
        "an append whose writer failed returns as if its entry was confirmed",
    ),
    _mutant(
        "budget-never-freed",
        "W6",
        "backlog.py",
        "            self.unconfirmed_bytes -= size_bytes\n",
        "",
        "the byte budget is used up for ever",
    ),
    _mutant(
        "refusal-is-ack",
        "W2",
        "sending.py",
        "if isinstance(answer, Response) and answer.status is Status.OK:\n            if answer.awaited:",
        "if isinstance(answer, Response) and answer.status is not Status.FENCED:\n            if answer.awaited:",
        "a bookie that refuses an add counts as one that stored it",
    ),
    _mutant(
        "error-without-unconfirmed",
        "W4",
        "sending.py",
        "            error.unconfirmed = unconfirmed\n",
        "            error.unconfirmed = range(0)\n",
        "the error says that no entry has an unknown fate",
    ),
    _mutant(
        "never-published",
        "W5",
        "writer_background.py",
        "        if is_idle:\n            publishing.publish()\n",
        "",
        "a writer that goes idle does not tell that its last entry is confirmed",
    ),
    _mutant(
        "no-deadline",
        "W6",
        "writer_background.py",
        "        self._check_deadline()\n",
        "",
        "an append that reaches no quorum waits for ever",
    ),
    _mutant(
        "unknown-is-absence-to-readers",
        "D2",
        "scan.py",
        "elif isinstance(answer, Response) and answer.status is Status.NO_ENTRY:",
        "elif isinstance(answer, Response):",
        "a reader takes an unreadable entry for a missing one",
    ),
    _mutant(
        "reader-stays-with-one",
        "D2",
        "scan.py",
        "                machine.read_slow(entry_id)\n",
        "                pass\n",
        "a silent bookie holds a reader up",
    ),
    _mutant(
        "reads-unconfirmed",
        "D1",
        "ledger_reader.py",
        "is_known = first >= 0 and last <= self.last_add_confirmed",
        "is_known = first >= 0",
        "entries that are not known to be confirmed are asked for",
    ),
    _mutant(
        "recovery-fences-as-writer",
        "T2",
        "recovering.py",
        "return FenceRequest(*shared, revision)",
        "return FenceRequest(*shared[:3], 1, revision)",
        "a recovery fences nobody",
    ),
    _mutant(
        "recovery-reads-as-writer",
        "R4",
        "recovering.py",
        "return RecoveryReadRequest(*shared, effect",
        "return RecoveryReadRequest(*shared[:3], 1, effect",
        "recovery reads don't fence",
    ),
    _mutant(
        "written-back-is-refused",
        "R4",
        "recovering.py",
        (
            "        if isinstance(answer, Response) and answer.status is Status.OK:\n"
            "            self._machine.add_confirmed"
        ),
        "        if isinstance(answer, Response):\n            self._machine.add_confirmed",
        "a bookie that refused what was written back counts as one that stored it",
    ),
    _mutant(
        "recovered-without-password",
        "B7",
        "ledgers.py",
        "        self.authorize(metadata, password)\n        if metadata.state is not LedgerState.CLOSED:\n",
        "        if metadata.state is not LedgerState.CLOSED:\n",
        "a closed ledger's record is given to anybody",
    ),
    _mutant(
        "wrong-password-opens",
        "B7",
        "ledgers.py",
        "if ledger_key_check(key) != metadata.key_check:",
        "if metadata.key_check and not password:",
        "any password but none opens a ledger",
    ),
    _mutant(
        "slice-off-by-one",
        "D3",
        "entries.py",
        "return payloads if len(payloads) == count else payloads[begin : begin + count]",
        "return payloads if len(payloads) == count else payloads[:count]",
        "a reader that begins inside a batch gets the entries before",
    ),
    _mutant(
        "dealt-in-wrong-order",
        "D3",
        "entries.py",
        "parts.sort(key=lambda part: part.batch.first_entry_id + part.begin * part.batch.stride)",
        "parts.sort(key=lambda part: part.batch.first_entry_id)",
        "a reader that begins inside striped batches gets entries in a wrong order",
    ),
    _mutant(
        "close-leaves-copies-behind",
        "W7",
        "entry_writer.py",
        "await late.wait(self.error)",
        "pass",
        "a program that ends at once leaves its last entries one copy short",
    ),
    _mutant(
        "hung-bookie-delays-each-close",
        "W6",
        "late_adds.py",
        "channel.note_late(request_ids)",
        "pass",
        "each of a thousand ledgers that are closed beside a bookie that hangs waits for it",
    ),
    _mutant(
        "silence-fails-the-writer",
        "C9",
        "ledger_records.py",
        "            machine.metadata_silent(error)",
        "            machine.abandon(error)",
        "a metastore that is silent for ten seconds ends a writer whose entries are all confirmed",
    ),
    _mutant(
        "hanging-bookie-is-waited-for",
        "C9",
        "writer_background.py",
        "if any(self._silence_s(channel) < patience_s for _, channel in self._behind(_LAG_BYTES_MAX)):",
        "if self._behind(_LAG_BYTES_MAX):",
        "a fast writer stands still for a bookie that hangs, though the others confirm",
    ),
    _mutant(
        "slow-bookie-is-left-behind",
        "W6",
        "writer_background.py",
        "known if known is not None and known[0] == oldest else (oldest, now_s)",
        "(oldest, now_s) if known is None else (oldest, known[1])",
        "a bookie that is far behind and answers is not waited for: it is given up, or memory grows",
    ),
    _mutant(
        "nothing-published-in-a-change",
        "W5",
        "writer_background.py",
        "        self.awaited_sends = 0\n        if self.is_due:",
        "        if self._machine.is_changing:\n            return\n        self.awaited_sends = 0\n        if self.is_due:",
        "followers of an idle writer do not see its last entry while the metastore is silent",
    ),
    SourceMutant(
        "cut-calls-begin-anew",
        "D1",
        "runtime/continued_call.py",
        "            self._was_cut = self._was_cut or not isinstance(error, Exception)\n",
        "            self._was_cut = False\n",
        "a follower whose deadlines are short never comes past a roll",
        _CONTINUED,
    ),
    SourceMutant(
        "two-tasks-read-at-once",
        "L6",
        "runtime/continued_call.py",
        "        if self._is_under_way:\n",
        "        if False:\n",
        "two tasks that wait for one reader get the same entries, or some twice",
        _CONTINUED,
    ),
    SourceMutant(
        "edit-trusts-a-lost-answer",
        "M1",
        "records/editing.py",
        "            await wait(error)\n",
        "            if isinstance(error, MetastoreUncertainError):\n"
        "                return changed\n"
        "            await wait(error)\n",
        "a change whose request was lost is reported as made",
        _EDITING,
    ),
    SourceMutant(
        "edit-writes-over-the-change-of-another",
        "M1",
        "records/editing.py",
        "            await wait(error)\n",
        "            _, version = await read()\n            await write(changed, version)\n            return changed\n",
        "of two clients that change a record, one loses its change",
        _EDITING,
    ),
)
