"""Mutants of the bookie."""

from tests.mutation.table import SourceMutant

_FIRST = {
    "commits.py": (
        "tests/bookie/test_groups.py",
        "tests/bookie/test_duplicates.py",
        "tests/bookie/test_server.py",
        "tests/bookie/test_full_disk.py",
        "tests/bookie/test_kernel_commits.py",
    ),
    "kernel_commits.py": ("tests/bookie/test_kernel_commits.py",),
    "groups.py": (
        "tests/bookie/test_groups.py",
        "tests/bookie/test_duplicates.py",
        "tests/bookie/test_server.py",
        "tests/bookie/test_full_disk.py",
    ),
    "garbage.py": ("tests/bookie/test_garbage.py", "tests/bookie/test_metastore_guard.py"),
    "hints.py": ("tests/bookie/test_metastore_guard.py",),
    "releasing.py": ("tests/bookie/test_metastore_guard.py", "tests/bookie/test_releasing.py"),
    "healing.py": ("tests/bookie/test_metastore_guard.py",),
    "metastore_guard.py": ("tests/bookie/test_metastore_guard.py",),
    "newcomers.py": ("tests/bookie/test_metastore_guard.py",),
    "polls.py": ("tests/bookie/test_server.py",),
    "plain_reads.py": ("tests/bookie/test_doubt.py", "tests/bookie/test_server.py"),
    "queue.py": ("tests/bookie/test_queue.py", "tests/bookie/test_groups.py"),
    "server.py": ("tests/bookie/test_doubt.py", "tests/bookie/test_server.py", "tests/bookie/test_full_disk.py"),
    "space.py": ("tests/bookie/test_space.py", "tests/bookie/test_full_disk.py"),
}
_THEN = ("tests/bookie", "tests/simulator/shells")


def _mutant(name: str, rule: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(name, rule, f"bookie/{file}", old, new, why, (*_FIRST[file], *_THEN))


MUTANTS = (
    _mutant(
        "failed-group-acknowledged",
        "B1",
        "groups.py",
        "        self.outcomes += [_failure(error)] * (len(self.works) - len(self.outcomes))\n",
        "        self.outcomes += [DURABLE] * (len(self.works) - len(self.outcomes))\n",
        "what a failed commit should have made durable is acknowledged",
    ),
    _mutant(
        "decided-survives-failure",
        "B1",
        "groups.py",
        "del self.outcomes[self.decided if isinstance(error, StorageFullError) else 0 :]",
        "del self.outcomes[self.decided :]",
        "after a storage failed, what it said before in the same group is believed",
    ),
    _mutant(
        "epoch-does-not-end",
        "B1",
        "groups.py",
        "if self._ended_by is not None and works[0].epoch <= self._ended_epoch:",
        "if False:",
        "what builds on a commit that failed is committed",
    ),
    _mutant(
        "groups-cross-epochs",
        "B1",
        "queue.py",
        "size_bytes > self._group_bytes_max or work.epoch != group[0].epoch):",
        "size_bytes > self._group_bytes_max):",
        "one group has what builds on a failed commit and what does not",
    ),
    _mutant(
        "void-machines-kept",
        "B1",
        "server.py",
        "        if is_void:\n            self._ledgers.clear()\n",
        "",
        "machines that went ahead of the disk go on as if all of it was durable",
    ),
    _mutant(
        "full-disk-forgets-confirmed",
        "B5",
        "groups.py",
        (
            "        accepted.mutations += [\n"
            "            SetMarks(each.ledger_id, None, None, each.last_add_confirmed, "
            "proof_of_head(head_of(each)))\n"
            "            for each in batches\n"
            "        ]\n"
        ),
        "",
        "on a full disk, the last add confirmed that was told is not durable",
    ),
    _mutant(
        "full-disk-forgets-fence",
        "R3",
        "groups.py",
        "            marks.fence_term = _higher(marks.fence_term, each.fence_term)\n",
        "",
        "on a full disk, a fence is answered and is not durable",
    ),
    _mutant(
        "stored-again",
        "T3",
        "groups.py",
        (
            "        if status is not None:\n"
            "            accepted.mutations = [each for each in accepted.mutations if not isinstance(each, "
            "PutBatch)]\n"
        ),
        "",
        "other bytes are stored over an entry",
    ),
    _mutant(
        "settled-before-durable",
        "T3",
        "groups.py",
        (
            "                # So that the storage shows everything accepted before.\n"
            "                self._decide(group, mutations)\n"
            "                mutations = []\n"
        ),
        "",
        "an add that comes twice in one group is not compared with the first",
    ),
    _mutant(
        "look-up-doubt-is-absence",
        "R4",
        "groups.py",
        (
            "            found = self.storage.read(ledger_id, entry_id, stamp, 1)[:1]\n"
            "        except StorageUncertainError:\n"
            "            return Outcome(found=None)\n"
        ),
        (
            "            found = self.storage.read(ledger_id, entry_id, stamp, 1)[:1]\n"
            "        except StorageUncertainError:\n"
            "            return Outcome(found=[])\n"
        ),
        "a recovery read that the disk can't answer is answered with a denial",
    ),
    _mutant(
        "looked-up-before-commit",
        "R3",
        "groups.py",
        (
            "        self._decide(group, mutations)\n"
            "        for place, work in enumerate(group.works):\n"
            "            request = work.accepted.request\n"
            "            if request.__class__ is AddRequest:  # nearly always\n"
            "                continue\n"
            "            if isinstance(request, RecoveryReadRequest) and work.accepted.refusal is None:\n"
            "                group.outcomes[place] = self._look_up(request.ledger_id, request.entry_id, "
            "request.stamp)\n"
        ),
        (
            "        for place, work in enumerate(group.works):\n"
            "            request = work.accepted.request\n"
            "            if request.__class__ is AddRequest:  # nearly always\n"
            "                continue\n"
            "            if isinstance(request, RecoveryReadRequest) and work.accepted.refusal is None:\n"
            "                group.outcomes[place] = self._look_up(request.ledger_id, request.entry_id, "
            "request.stamp)\n"
            "        self._decide(group, mutations)\n"
            "        for place, work in enumerate(group.works):\n"
            "            request = work.accepted.request\n"
            "            if request.__class__ is AddRequest:  # nearly always\n"
            "                continue\n"
            "            if isinstance(request, RecoveryReadRequest) and work.accepted.refusal is None:\n"
            "                continue\n"
        ),
        "a recovery read does not see what was accepted before it",
    ),
    _mutant(
        "read-only-refuses-recovery",
        "B5",
        "server.py",
        "or not isinstance(request, AddRequest) or request.recovery:\n            return None\n",
        "or not isinstance(request, AddRequest):\n            return None\n",
        "a full bookie refuses what recoveries write back",
    ),
    _mutant(
        "deposed-told-to-look-elsewhere",
        "L5",
        "server.py",
        "        if request.term < ledger.fence_term or ledger.is_foreign(request.key):\n            return None\n",
        "",
        "a full bookie tells a deposed writer to try elsewhere",
    ),
    _mutant(
        "damage-is-absence-to-reads",
        "R4",
        "plain_reads.py",
        (
            "            self._raised(error)\n"
            "            reply([Response(request.request_id, Status.UNKNOWN, detail=str(error))])\n"
        ),
        "            self._raised(error)\n            reply([Response(request.request_id, Status.NO_ENTRY)])\n",
        "a read that the disk can't answer is answered with a denial",
    ),
    _mutant(
        "marks-made-up",
        "R3",
        "server.py",
        "marks = self.storage.marks(ledger_id) or Marks()\n",
        "marks = Marks()\n",
        "after a restart a bookie knows no fence",
    ),
    _mutant(
        "queue-unbounded",
        "B9",
        "server.py",
        "if is_full and _is_too_busy_for(request, self._commits, self.options):",
        "if False:",
        "what waits for a slow disk grows without bound",
    ),
    _mutant(
        "garbage-not-looked-up-again",
        "B6",
        "garbage.py",
        "    await for_each(look_up, ledger_ids, _LOOKUPS)\n",
        "    absent.update(ledger_ids)\n",
        "ledgers that were not listed are dropped without another look",
    ),
    _mutant(
        "few-are-all-dropped",
        "B6",
        "garbage.py",
        "    dropped = [ledger_id for ledger_id in ledger_ids if ledger_id in absent]\n",
        "    dropped = [ledger_id for ledger_id in ledger_ids if absent]\n",
        "ledgers that exist are dropped",
    ),
    _mutant(
        "metastore-not-looked-at-before-a-drop",
        "B6a",
        "garbage.py",
        "        await bookie.guard.check()\n",
        "        pass\n",
        "a metastore that goes back during a pass makes garbage of everything",
    ),
    _mutant(
        "counter-of-the-cookie-ignored",
        "B6a",
        "metastore_guard.py",
        "        if cookie.times_raised < self._seen.times_raised:\n",
        "        if False:\n",
        "an older metastore with the same next ledger id makes garbage of new ledgers",
    ),
    _mutant(
        "counter-not-raised-for-new-ledgers",
        "B6a",
        "metastore_guard.py",
        "        return await (self.raise_counter() if self._has_begun else self.check())\n",
        "        return await self.check()\n",
        "a metastore from before a ledger's creation looks like the present one",
    ),
    _mutant(
        "next-id-that-sank-ignored",
        "B6a",
        "metastore_guard.py",
        "        if next_ledger_id < self._seen.next_ledger_id:\n            self._doubt",
        "        if False:\n            self._doubt",
        "a counter of ledger ids that went back raises no alarm while nothing above it is held",
    ),
    _mutant(
        "missing-root-is-an-empty-listing",
        "B6a",
        "metastore_guard.py",
        '            self._doubt(f"its key {root!r} is gone, above all ledgers")\n',
        "            pass\n",
        "deleting the ledgers' keys drops their entries",
    ),
    _mutant(
        "foreign-cookie-believed",
        "B6a",
        "metastore_guard.py",
        "        if self._seen.token and cookie.token != self._seen.token:\n",
        "        if False:\n",
        "another cluster's metastore makes garbage of everything",
    ),
    _mutant(
        "sighting-not-kept",
        "B6a",
        "metastore_guard.py",
        "                await self._call(lambda: self._storage.keep_sighting(seen))\n",
        "                pass\n",
        "a bookie that restarts believes any metastore",
    ),
    _mutant(
        "healed-on-the-word-of-any-metastore",
        "B6a",
        "healing.py",
        "            await self._server.guard.check()\n",
        "",
        "an empty metastore ends a bookie's doubt",
    ),
    _mutant(
        "released-on-the-word-of-any-metastore",
        "B6a",
        "releasing.py",
        "                await self._bookie.guard.check()\n",
        "",
        "an older record makes a bookie drop the copies that it was given since",
    ),
    _mutant(
        "stray-ids-are-taken",
        "B6a",
        "newcomers.py",
        "(not is_answered and self._ids.is_plausible(ledger_id))",
        "True",
        "one stray request makes a bookie doubt its metastore",
    ),
    _mutant(
        "newcomers-out-of-order",
        "B2",
        "newcomers.py",
        "        for request, reply, _ in waiting:\n",
        "        for request, reply, _ in reversed(waiting):\n",
        "requests for a new ledger are taken in another order than they came",
    ),
    _mutant(
        "brings-unconfirmed",
        "D1",
        "polls.py",
        "batches = tuple(batch for batch in found if batch.first_entry_id <= confirmed)",
        "batches = tuple(found)",
        "a long poll brings batches of which nothing is confirmed",
    ),
    _mutant(
        "waiters-forgotten",
        "D1",
        "polls.py",
        "            self._by_ledger[ledger.ledger_id] = still\n",
        "",
        "who waits for more than others is never answered before its deadline",
    ),
    _mutant(
        "full-for-ever",
        "B5",
        "space.py",
        "            self.error = None\n",
        "            pass\n",
        "a bookie that was full never takes entries again",
    ),
    _mutant(
        "doubt-not-looked-at",
        "B8",
        "server.py",
        "is_in_doubt = not self.doubt.takes_adds(ledger_id)",
        "is_in_doubt = False",
        "a bookie whose storage doubts takes adds of a deposed writer",
    ),
    _mutant(
        "doubtful-denies-plain-reads",
        "R10",
        "plain_reads.py",
        "denial = Status.NO_ENTRY if found else self._storage.doubt().denial(request.ledger_id)",
        "denial = Status.NO_ENTRY",
        "a bookie whose storage doubts denies without doubt",
    ),
    _mutant(
        "copies-before-what-came-first",
        "B2",
        "queue.py",
        "if waiting and waiting[0].accepted_at_s <= work.accepted_at_s:",
        "if waiting and waiting[0].accepted_at_s < 0:",
        "a copy becomes durable before a fence of its ledger that was accepted before it",
    ),
    _mutant(
        "fence-before-copies",
        "B2",
        "queue.py",
        "isinstance(request, CopyRequest) or request.ledger_id in self._ledgers:",
        "isinstance(request, CopyRequest):",
        "a fence overtakes what was accepted before it",
    ),
    _mutant(
        "append-waits-for-all-copies",
        "B9",
        "queue.py",
        "COPIES_BYTES_MAX if is_busy else self._group_bytes_max",
        "self._group_bytes_max",
        "an append waits until mebibytes of a repair's copies are durable",
    ),
    _mutant(
        "answered-while-it-syncs",
        "B1",
        "kernel_commits.py",
        "if self._is_left or self._sync is None or not self._sync.has_ended() or self.group is None:",
        "if self._is_left or self._sync is None or self._sync.has_ended() is None or self.group is None:",
        "what the kernel still syncs is acknowledged",
    ),
    _mutant(
        "overtakes-what-the-kernel-synced",
        "B2",
        "commits.py",
        "        if group is not None:\n            self._answer(group)\n        return bool(self.gathered)",
        "        if group is not None:\n            self._soon(self._answer, group)\n        return bool(self.gathered)",
        "an add that is committed at once is answered before the one that the kernel has made durable before it",
    ),
    _mutant(
        "kernel-forgets-what-gathered",
        "B2",
        "commits.py",
        "        if is_lone and self.gathered:  # else an answer led to committing it\n            self.commit_beside()\n",
        "",
        "what came while the kernel synced waits until something else comes",
    ),
)
