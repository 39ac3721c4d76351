"""Mutants of the metrics of logs and state machines: figures that are wrong, old or made up, and nobody would notice."""

from tests.mutation.table import SourceMutant

_TESTS = {
    "logs": ("tests/metrics/test_logs.py",),
    "machines": ("tests/metrics/test_machines.py",),
    "collecting": ("tests/metrics/test_logs.py", "tests/metrics/test_machines.py"),
}


def _mutant(name: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(f"metrics-{name}", "nothing is guessed", f"metrics/{file}.py", old, new, why, _TESTS[file])


MUTANTS = (
    _mutant(
        "unknown-is-zero",
        "collecting",
        "            if value is not None:\n                self._families[name].add_metric(labels, float(value))\n",
        "            self._families[name].add_metric(labels, float(value or 0))\n",
        "what nobody could find out is told as nothing: an alert on it never rings, or always",
    ),
    _mutant(
        "old-look-told",
        "logs",
        "            self._listing, self._summaries, self._ended = listing, summaries, number\n",
        "            self._listing, self._ended = listing, number\n            self._summaries.update(summaries)\n",
        "a log whose bookies are gone keeps the figures of an earlier look",
    ),
    _mutant(
        "silent-metastore-lists",
        "logs",
        "            self._listing, self._summaries, self._ended = listing, summaries, number\n",
        "            self._listing = listing or self._listing\n            self._summaries, self._ended = summaries, number\n",
        "a metastore that does not answer is not seen in the metrics",
    ),
    _mutant(
        "problem-kept-quiet",
        "logs",
        "        is_known = summary is not None and summary.problem is None\n",
        "        is_known = summary is not None\n",
        "a log that could not be looked at counts as known",
    ),
    _mutant(
        "first-look-counts-all",
        "logs",
        "        appended = None if before is None else summary.appended_since(before)\n",
        "        appended = summary.appended_since(before or summary)\n"
        "        self._appended.setdefault(name, (summary.entries or 0, summary.size_bytes or 0))\n",
        "after a restart all that the log holds counts as appended at once",
    ),
    _mutant(
        "counted-again",
        "logs",
        "            self._counted_to[name] = summary\n",
        "            self._counted_to.setdefault(name, summary)\n",
        "what was appended is counted at each look again",
    ),
    _mutant(
        "recreated-log-stops-counting",
        "logs",
        "(appended is not None or before is None or _is_gone(before, summary))",
        "(appended is not None or before is None)",
        "the counters of a log that was deleted and created again stand still",
    ),
    _mutant(
        "bytes-made-up",
        "logs",
        "        if _says_bytes(summary):\n            logs.add",
        "        if True:\n            logs.add",
        "the bytes of a log whose ledgers don't say them are told as if nothing came",
    ),
    _mutant(
        "slowest-not-named",
        "logs",
        '                "keeps_most": float(cursor is slowest),\n',
        '                "keeps_most": float(slowest is not None),\n',
        "each cursor is named as the one that blocks retention",
    ),
    _mutant(
        "kept-segments-of-all",
        "logs",
        "        begins_at = max(cursor.begins_at.segment, head.first_segment_number)\n",
        "        begins_at = head.first_segment_number\n",
        "a cursor that is up to date is said to keep the whole log",
    ),
    _mutant(
        "milliseconds-for-seconds",
        "logs",
        "    return None if time_ms is None else time_ms / _MS\n",
        "    return None if time_ms is None else float(time_ms)\n",
        "the age of a log's last entry is always far in the future",
    ),
    _mutant(
        "everybody-leads",
        "machines",
        "float(status.leads_from is not None)",
        "float(status.leads_from is not status.position)",
        "a machine without a leader, or with two, looks healthy",
    ),
    _mutant(
        "restored-is-zero",
        "machines",
        '                "restored_ratio": status.restoring,\n',
        '                "restored_ratio": status.restoring or 0.0,\n',
        "a member that reads no snapshot looks as one that does not get on",
    ),
    _mutant(
        "no-command-is-1970",
        "machines",
        "status.time_ns / 1e9 if status.time_ns else None",
        "status.time_ns / 1e9",
        "a new member is said to be half a century behind",
    ),
)
