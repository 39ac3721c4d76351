"""Mutants of the metastore's members outside their machine: leases, waits, disks. Those of the machine are the simulator's."""

from tests.mutation.table import SourceMutant

_TESTS = ("tests/metastores/quorum/test_leases.py",)


def _member(name: str, rule: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(f"members-{name}", rule, file, old, new, why, _TESTS)


def _full(name: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(f"members-{name}", "Q18", file, old, new, why, ("tests/disks/test_full_members.py",))


def _disk(name: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(f"members-{name}", "Q2", file, old, new, why, ("tests/disks/test_each_write.py",))


def _watch(name: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(f"members-{name}", "Q17", file, old, new, why, ("tests/metastores/quorum/test_running.py",))


MUTANTS = (
    _watch(
        "leader-is-waited-for",
        "metastores/quorum/watch.py",
        "elif not self._is_standing:",
        "elif False:",
        "after the end of the leader's process, changes wait for seconds of silence",
    ),
    SourceMutant(
        "members-copies-again",
        "Q12",
        "metastores/quorum/node.py",
        "if follower is None or follower.matched >= base.index:",
        "if True:",
        "while a follower writes a large copy, it is sent again and again",
        ("tests/metastores/quorum/test_member_calls.py",),
    ),
    SourceMutant(
        "members-stand-once",
        "Q17",
        "protocol/consensus/member.py",
        "if self.leader in (None, name):",
        "if self.leader == name:",
        "two members that stood at one moment wait for seconds of silence",
        ("tests/protocol/consensus/test_member.py",),
    ),
    _watch(
        "moved-is-forgotten",
        "metastores/quorum/peers.py",
        "        self._said[name] = address\n",
        "",
        "a member that is started at another address is answered at the old one, and never takes part again",
    ),
    _disk(
        "mark-before-commit",
        "metastores/quorum/store.py",
        "            try:\n                with self._map.writing, self._map.environment.begin(write=True) as transaction:\n",
        "            try:\n                self._mark.put(position + 1)\n"
        "                with self._map.writing, self._map.environment.begin(write=True) as transaction:\n",
        "a member that was killed has less than its mark says, and becomes a new one: two of three at once, and nobody is left",
    ),
    _disk(
        "commits-not-synced",
        "runtime/lmdb_map.py",
        "                readahead=self._read_ahead,\n",
        "                readahead=self._read_ahead,\n                sync=False,\n",
        "a power loss takes votes, entries and metadata that were told",
    ),
    _disk(
        "vote-not-written",
        "metastores/quorum/store.py",
        '_NUMBER.pack(write.term) + (write.voted_for or "").encode()',
        "_NUMBER.pack(write.term)",
        "a member that was killed votes twice in one term: two leaders",
    ),
    _disk(
        "rows-before-applied",
        "metastores/quorum/store.py",
        """            _put_moment(transaction, write, applied)
            for row, value in changes.items():
                if value is None:
                    transaction.delete(_ROW + row)
                else:
                    transaction.put(_ROW + row, value)

        self._commit(change)
""",
        """            if write is not None:
                _put_log(transaction, write)
            for row, value in changes.items():
                if value is None:
                    transaction.delete(_ROW + row)
                else:
                    transaction.put(_ROW + row, value)

        self._commit(change)
        self._commit(lambda transaction: transaction.put(_APPLIED, _NUMBER.pack(applied)))
""",
        "a member that was killed applies entries twice: a change that was answered is refused, and sums differ",
    ),
    _disk(
        "applied-before-rows",
        "metastores/quorum/store.py",
        "        self._commit(change)\n\n    def replace(",
        "        self._commit(lambda transaction: transaction.put(_APPLIED, _NUMBER.pack(applied)))\n"
        "        self._commit(change)\n\n    def replace(",
        "a member that was killed leaves out what entries changed: it has another state than the others",
    ),
    SourceMutant(
        "members-mark-not-checked",
        "Q11",
        "metastores/quorum/mark.py",
        "return int(position) if crc32c(_POSITION.pack(position)) == checksum else None",
        "return int(position)",
        "a mark that the disk has damaged is believed: a member that lost its vote votes again",
        ("tests/metastores/quorum/test_mark.py",),
    ),
    _full(
        "full-disk-stops-members",
        "metastores/quorum/store.py",
        "if not is_full(error, free_bytes_at(self._map.path)) or not self._spare.give_up():",
        "if True:",
        "members stop on a full disk, and nothing can be trimmed to make room",
    ),
    _full(
        "full-disk-is-filled",
        "metastores/quorum/node.py",
        "if self._store.is_short and _fills(",
        "if False and _fills(",
        "what was held back is used up by new keys, and then all members stop",
    ),
    _member(
        "hung-leader-counts",
        "Q15",
        "metastores/quorum/leases.py",
        "passed_s = min(now_s - self._counted_at_s, self._counted_max_s)",
        "passed_s = now_s - self._counted_at_s",
        "a leader that hung for a minute expires everybody",
    ),
    _member(
        "expire-of-old-term",
        "Q15",
        "protocol/consensus/registers.py",
        "elif command.what is What.EXPIRE and command.value != TERM.pack(term):",
        "elif False:",
        "a leader that was deposed in between expires by what it counted before",
    ),
    _member(
        "beat-without-majority",
        "Q15",
        "metastores/quorum/service.py",
        "is_there, index = await node.read(lambda state: node.leases.beat(state, key, version))",
        "is_there, index = node.leases.beat(node._state, key, version), node.applied",
        "a leader of the past tells a holder that its key exists, which others have let expire",
    ),
    _member(
        "clients-expire",
        "Q15",
        "metastores/quorum/service.py",
        "if command is not None and command.what is What.EXPIRE:",
        "if False:",
        "any client ends another one's announcement",
    ),
    _member(
        "candidates-write",
        "Q15",
        "metastores/quorum/metastore.py",
        "        with suppress(KeyNotFoundError):\n            await self.get(key)\n",
        "        with suppress(KeyNotFoundError):\n            raise KeyNotFoundError(key, '')\n",
        "each candidate writes an entry to three disks every few seconds",
    ),
    _member(
        "lease-outlives-key",
        "Q15",
        "protocol/consensus/registers.py",
        "                self._rows.delete(_lease_row(row))\n",
        "                pass\n",
        "a key that is created where one was announced expires",
    ),
    _member(
        "listing-not-woken",
        "Q10",
        "metastores/quorum/callers.py",
        "while is_listed_anew and key:",
        "while False:",
        "who waits for children hears of none",
    ),
    _member(
        "waits-outlive-leader",
        "Q10",
        "metastores/quorum/callers.py",
        "            read.ended.set()\n        self.waits.wake_all()\n",
        "            read.ended.set()\n",
        "who waits at a leader that was deposed hears of nothing",
    ),
)
