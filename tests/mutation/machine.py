"""Mutants of replicated state machines: of exactly-once, reads, sessions and snapshots."""

from tests.mutation.table import SourceMutant

_FIRST = {
    "core": ("tests/machine/test_core.py",),
    "leading": ("tests/machine/test_leading.py", "tests/machine/test_members.py"),
    "member": ("tests/machine/test_leading.py", "tests/machine/test_snapshots.py", "tests/machine/test_members.py"),
    "snapshots": ("tests/machine/test_snapshots.py",),
    "snapshot_format": ("tests/machine/test_snapshots.py",),
    "sessions": ("tests/machine/test_members.py", "tests/machine/test_sessions.py"),
    "running": ("tests/machine/test_members.py",),
    "visits": ("tests/machine/test_members.py",),
    "commands": ("tests/machine/test_commands.py",),
}


def _mutant(name: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    tests = (*_FIRST[file], "tests/machine/test_simulated.py")
    room = "log" if file == "snapshot_format" else "machine"
    return SourceMutant(f"machine-{name}", "exactly once", f"{room}/{file}.py", old, new, why, tests)


MUTANTS = (
    _mutant(
        "repeat-applied",
        "core",
        "        if known is not None:\n            return Answer(*known)\n",
        "",
        "a command that is repeated after a lost answer is applied twice",
    ),
    _mutant(
        "floor-forgotten",
        "core",
        "        if entry.sequence < session.floor:\n            return Answer(Code.FORGOTTEN)\n",
        "",
        "a late repeat of a command whose answer was forgotten is applied again",
    ),
    _mutant(
        "results-not-in-snapshot",
        "core",
        "        for sequence, code, body in results:\n            session.remember(sequence, (code, body.encode()))\n",
        "",
        "a member that was restored applies a repeat again",
    ),
    _mutant(
        "expired-session-lives",
        "core",
        "        if session is None:\n            return Answer(Code.EXPIRED)\n",
        "        if session is None:\n            session = self._sessions[entry.session] = _Session()\n",
        "a command is applied again after its session, with the first answer, has expired",
    ),
    _mutant(
        "session-ids-reused",
        "core",
        "session, self._next_session = self._next_session, self._next_session + 1",
        "session = len(self._sessions) + 1",
        "two callers have one session, and take each other's answers for their own",
    ),
    _mutant(
        "raising-not-applied",
        "core",
        "            return Code.FAILED, to_json(shown).encode()",
        "            return Code.BUSY, to_json(shown).encode()",
        "a command that raises is sent again and again",
    ),
    _mutant(
        "beginning-not-missed",
        "core",
        "        if kind not in _BEFORE_THE_BEGINNING:\n",
        "        if kind not in _BEFORE_THE_BEGINNING and False:\n",
        "a member that finds a trimmed log and no snapshot takes the rest for all",
    ),
    _mutant(
        "time-goes-back",
        "core",
        "        if entry.time_ns > self.time_ns:\n",
        "        if entry.time_ns:\n",
        "`now` goes back when a leader's clock is behind that of the leader before",
    ),
    _mutant(
        "divergence-unseen",
        "core",
        "        if self.checked[1] != expected:\n",
        "        if not expected:\n",
        "members whose states differ go on",
    ),
    _mutant(
        "read-without-barrier",
        "leading",
        "                self._gathered.readers.append((visit, place))\n                self._gather()\n"
        "                continue\n",
        "                self._answer(visit, place, Answer(Code.DONE, position=self._core.position))\n                continue\n",
        "a leader that was deposed and does not know it answers with an old state",
    ),
    _mutant(
        "applied-before-confirmed",
        "leading",
        "        last = self._log.last_add_confirmed\n",
        "        last = self._log.last_add_pushed\n",
        "a command is answered that the next leader may not find in the log",
    ),
    _mutant(
        "deposed-goes-on-waiting",
        "leading",
        "        for visit in dict.fromkeys(visit for visit, _ in waiting):\n",
        "        for visit in dict.fromkeys(visit for visit, _ in waiting[:0]):\n",
        "callers of a deposed leader wait until they time out",
    ),
    _mutant(
        "gathered-not-refused",
        "leading",
        "        entries = [*self._pending, *self._gathered.entries]\n",
        "        entries = [*self._pending]\n",
        "callers whose commands gather while a leader is deposed wait until they time out",
    ),
    _mutant(
        "gathered-left-behind",
        "leading",
        "                await trio.lowlevel.checkpoint()\n            self._gather()\n",
        "                await trio.lowlevel.checkpoint()\n",
        "a command that came while others were under way waits for the next one, or for ever",
    ),
    _mutant(
        "rest-ignores-readers",
        "member",
        "        self._waiting[event] = position\n        self._come.set()\n",
        "        self._waiting[event] = position\n",
        "a read waits for the rest of a follower",
    ),
    _mutant(
        "serves-before-replay",
        "member",
        "                await self._catch_up(began, log.ledger_id)\n",
        "",
        "a new leader serves without what was confirmed before",
    ),
    _mutant(
        "newer-snapshot-replaced",
        "snapshots",
        '            if Position.parse(custom.get(POSITION_KEY, "")) >= position:\n                return True\n',
        '            if Position.parse(custom.get(POSITION_KEY, "")) >= position:\n                return False\n',
        "a deposed leader drops the snapshot for which the log was trimmed",
    ),
    _mutant(
        "snapshot-in-part",
        "snapshot_format",
        "        is_whole = self._hash.hexdigest() == header.sha256\n",
        "        is_whole = True\n",
        "a damaged snapshot is restored",
    ),
    _mutant(
        "floor-passes-the-unanswered",
        "sessions",
        "return next(iter(self._unanswered)) if",
        "return command_id.sequence if",
        "the leader forgets answers that have not come yet",
    ),
    _mutant(
        "password-unchecked",
        "visits",
        "        if not hmac.compare_digest(request.key, self._key):\n",
        "        if False:\n",
        "whoever reaches a member writes to its log (B7)",
    ),
    _mutant(
        "text-for-a-number",
        "commands",
        "        if same != value:\n            raise TypeError(problem)\n",
        "",
        "an argument arrives as another value than it was passed",
    ),
    _mutant(
        "full-session-waits-for-itself",
        "core",
        "if session.is_full and entry.sequence != session.floor:",
        "if session.is_full:",
        "later answers fill a session, and the command that they wait for is refused for ever",
    ),
    _mutant(
        "floor-of-the-first-attempt",
        "running",
        "                floor = session.floor(command_id)  # which others have raised meanwhile\n",
        "",
        "a command that its session had no room for is refused for ever, though room was made since",
    ),
    _mutant(
        "refusal-written-with-each-repeat",
        "leading",
        "            if answer is not None:\n                self._answer(visit, place, answer)\n                continue\n",
        "",
        "the log grows by what is not applied, and no snapshot trims it",
    ),
    _mutant(
        "kept-ids-hold-the-calls",
        "running",
        "return await self._ids.begin()",
        "return await self._session.begin()",
        "an id that its caller keeps for long stops all calls of its member",
    ),
    _mutant(
        "id-under-way-is-given-up",
        "sessions",
        "return CommandId(self._id, sequence) in self._under_way",
        "return False",
        "the answer to a call with an id is forgotten before it has come",
    ),
    _mutant(
        "answers-kept-when-the-floor-jumps",
        "core",
        "answered = [sequence for sequence in results if sequence < floor]",
        "answered = ()",
        "a caller whose floor jumps is refused for ever: the answers that it has fill its session",
    ),
    _mutant(
        "floor-frees-one-answer",
        "core",
        "answered = range(self.floor, floor)",
        "answered = range(self.floor, self.floor + 1)",
        "answers that the caller has are kept, and fill its session",
    ),
    _mutant(
        "texts-of-failures-in-the-hash",
        "core",
        '"" if code == Code.FAILED else body.decode()',
        "body.decode()",
        "members that agree stop, since the text of a failure has the address of an object",
    ),
    _mutant(
        "paused-leader-expires-all",
        "leading",
        "if now_s - looked_s > 2 * look_s:",
        "if False:",
        "a leader that was stopped for a while ends the sessions of all callers when it goes on",
    ),
)
