"""The tables of a run, as a page of the documentation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks.figures import Figures
from benchmarks.peers.plan import REFERENCE, ROUNDS, Scale, Task, size
from benchmarks.peers.quiet import Limits
from benchmarks.peers.results import Candidate, Results, judge, reference

_NAMED_MAX = 4  # systems, in the title

_PERCENTILES = ("p50_us", "p99_us", "p999_us")

Cell = Callable[[Candidate, Task], str]
Tell = Callable[[Figures], str]
Column = tuple[str, Task, Tell]  # its heading, and what it tells of what


def page(results: Results, charts: Mapping[str, str]) -> str:
    """Markdown. `charts` says where each chart is, by its name; those that aren't there are left out."""
    parts = [
        _head(results),
        _about(results),
        *_goals(results),
        *_promises(results),
        *_chart(charts, "throughput", "entries per second by system, 1000 in flight"),
        *_throughput(results),
        *_chart(charts, "in-flight", "entries per second over entries in flight, one line for each system"),
        *_ratios(results),
        *_latencies(results),
        *_chart(charts, "latency", "the middle latency of a lone append by system, beside the disk alone"),
        *_cpu(results),
        *_chart(charts, "cpu", "CPU time for an entry by system, of clients and of servers"),
        *_sustained(results),
        *_chart(charts, "sustained", "entries per second by system, over a longer time in which nothing is deleted"),
        *_other(results),
        *_chart(charts, "other", "reading, following, taking over and restarting by system"),
        *_alone(results),
        *_chart(charts, "alone", "entries per second of single nodes, by entries per call"),
        *_not_there(results),
        *_reproduce(results),
    ]
    return "\n\n".join(parts) + "\n"


def _head(results: Results) -> str:
    titles = [each.title for each in results.candidates]
    of_few = f" of {'; '.join(titles)}" if len(titles) <= _NAMED_MAX else ""
    return (
        f"# Side by side: results{of_few}\n\nWhat `make bench-peers` found; [Performance](performance-details.md#side-by-side) "
        "says what is compared, and what is not.\nThis page is made by the program, by the commands at its end."
    )


def _about(results: Results) -> str:
    machine, limits, raw_us = results.machine, results.limits, results.raw_p50_us()
    lines = [
        f"{machine.processor}, {machine.processors} processors, {size(machine.memory_bytes)} of memory, {machine.kernel}, "
        f"{machine.file_system} on {machine.disk}, {machine.python}; replog {machine.replog}; {_list(results.dates)}.",
        f"Medians of {counted(results.rounds, 'round')}; {results.seconds:g} s for each load of appends. The systems took "
        "turns, one running at a time.",
        f"{counted(results.count('good'), 'measurement')} of use, {results.count('not quiet')} thrown away: fdatasync of "
        f"4 KiB alone took more than {limits.raw_p50_us:g} µs right before or after, or other processes used more than "
        f"{limits.foreign_cpus:g} processors.",
    ]
    lines += [f"fdatasync of 4 KiB alone, beside them: {micros(raw_us)}."] if raw_us else []
    lines += ["**The run was interrupted**: what is missing was not measured."] if results.is_interrupted else []
    return "\n".join(f"- {each}" for each in [*_warnings(results), *lines])


def _warnings(results: Results) -> list[str]:
    """What a reader must know before anything else."""
    usual, raw_us = Limits(), results.raw_p50_us()
    reasons = ["other things went on beside"] * (results.limits.foreign_cpus > usual.foreign_cpus)
    reasons += ["the disk was slow"] * (raw_us is not None and raw_us > usual.raw_p50_us)
    reasons += ["the loads were short"] * (results.seconds < Scale().seconds)
    reasons += ["there were few rounds"] * (results.rounds < ROUNDS)
    return [f"**These figures show that it works, not how well**: {_list(reasons)}."] if reasons else []


def _goals(results: Results) -> list[str]:
    rows = []
    for each in judge(results):
        what = "entries per second" if each.goal.is_rate else "p50, how many times as fast"
        how = f"{each.goal.task.entries_per_call} per call" if each.goal.task.entries_per_call > 1 else ""
        how = how or f"{grouped(each.goal.task.in_flight)} in flight"
        task = f"{size(each.goal.task.entry_bytes)}, {how}"
        spread = f"{ratio(each.least)} to {ratio(each.most)}"
        verdict = {True: "met", False: "**not met**", None: ""}[each.is_met]
        wanted = "-" if each.goal.at_least is None else f"≥ {each.goal.at_least:g}"
        rows.append((each.title, task, what, f"**{ratio(each.ratio)}**", spread, wanted, verdict))
    heading = ("replog against", "load", "of", "ratio", "of rounds", "goal", "")
    return ["## How many times as good", _table(heading, rows), *_told_apart(results)] if rows else []


def _told_apart(results: Results) -> list[str]:
    """Of rows of one system that only its readers' knowledge would tell apart, and which of them the goal is of."""
    titles = {each.name: each.title for each in results.measured(is_replicated=True)}
    found = []
    if {"zookeeper", "zookeeper-session"} <= titles.keys():
        found.append(
            f"*{titles['zookeeper-session']}* keeps the order of one writer, as each log here does: the goal was set by a "
            f"measurement of that. *{titles['zookeeper']}* has as many sessions as are fastest, which gives it up."
        )
    if "rabbitmq" in titles:
        found.append(f"*{titles['rabbitmq']}*: the goal was set by a measurement at 100 B; 1 KiB stands beside.")
    return found


def _promises(results: Results) -> list[str]:
    rows, settings = [], []
    for each in [one for one in results.candidates if not one.missing]:
        promise = each.promise
        synced = "yes" if promise.is_synced else "**no**"
        rows.append((each.title, each.version, f"{promise.confirmed_by} of {promise.copies}", synced))
        settings.append(f"- **{each.title}**: {' '.join(promise.words.split())}")
    words = (
        "What is true of an entry when its writer hears that it is confirmed: on how many nodes it is, and whether it is on "
        "their disks then. Systems that don't sync first are marked with an asterisk below."
    )
    table = _table(("system", "version", "confirmed by", "on disk"), rows)
    return ["## What each promises", words, table, "Settings:", "\n".join(settings)] if rows else []


def _throughput(results: Results) -> list[str]:
    words = (
        "Entries per second, with so many sent and not confirmed. *Not quiet*: the machine was busy with something else at "
        "each try."
    )
    tables = _append_tables(results, lambda candidate, task: _rate(results, candidate, task))
    return ["## Throughput of appends", words, *tables] if tables else []


def _ratios(results: Results) -> list[str]:
    def cell(candidate: Candidate, task: Task) -> str:
        found = results.ratios(candidate.name, reference(candidate), task, "entries_per_s")
        return ratio(statistics.median(found)) if found else ""

    tables = _append_tables(results, cell, without_reference=True)
    words = (
        "How many times as many entries per second replog appends as the other: medians of the ratios within rounds."
    )
    return ["## Against replog", words, *tables] if tables else []


def _append_tables(results: Results, cell: Cell, *, without_reference: bool = False) -> list[str]:
    """One for each size; a column for each number in flight."""
    candidates = [
        each
        for each in results.measured(is_replicated=True)
        if not (without_reference and each.name == REFERENCE[True])
    ]
    found = []
    for entry_bytes, tasks in _by_size(results, is_replicated=True).items():
        columns = [f"{grouped(each.in_flight)} in flight{_calls(each)}" for each in tasks]
        rows = [(_name(each), *(cell(each, task) for task in tasks)) for each in candidates]
        rows = [row for row in rows if any(row[1:])]
        if rows:
            found += [_table((size(entry_bytes), *columns), rows)]
    return found


def _calls(task: Task) -> str:
    return f", {grouped(task.entries_per_call)} per call" if task.entries_per_call > 1 else ""


def _by_size(results: Results, *, is_replicated: bool) -> dict[int, list[Task]]:
    names = {each.name for each in results.measured(is_replicated=is_replicated)}
    asked = {each.task for each in results.measurements if each.system in names and each.task.case == "append"}
    found: dict[int, list[Task]] = {}
    for each in sorted(asked, key=lambda task: (task.entry_bytes, task.in_flight, task.entries_per_call)):
        found.setdefault(each.entry_bytes, []).append(each)
    return found


def _latencies(results: Results) -> list[str]:
    found = []
    for in_flight in (1, 1_000):
        for entry_bytes, tasks in _by_size(results, is_replicated=True).items():
            task = Task("append", entry_bytes, in_flight)
            rows = []
            for each in results.measured(is_replicated=True) if task in tasks else ():
                figures = results.figures(each.name, task)
                rows += [(_name(each), *(micros(figures[name]) for name in _PERCENTILES))] if figures else []
            if rows:
                title = f"{size(entry_bytes)}, {grouped(in_flight)} in flight"
                found += [_table((title, "p50", "p99", "p99.9"), rows)]
    words = "From sending an entry to hearing that it is confirmed. With 1000 in flight most of it is waiting for those before."
    return ["## Latency of appends", words, *found] if found else []


def _cpu(results: Results) -> list[str]:
    found = []
    for entry_bytes in _by_size(results, is_replicated=True):
        task = Task("append", entry_bytes, 1_000)
        rows = []
        for each in results.measured(is_replicated=True):
            if figures := results.figures(each.name, task):
                client, server = figures["client_cpu_us"], figures["server_cpu_us"]
                rows.append((_name(each), cpu(client), cpu(server), cpu(client + server)))
        if rows:
            heading = (f"{size(entry_bytes)}, 1 000 in flight", "client", "all servers", "together")
            found += [_table(heading, rows)]
    words = "CPU time for an entry, in user and kernel mode, of all threads."
    return ["## CPU time of appends", words, *found] if found else []


def _sustained(results: Results) -> list[str]:
    """A row for each system, with its own rate in the short load of the same kind beside."""
    tables, tasks = [], results.tasks("sustained")
    for task in tasks:
        rows, took_s = [], 0.0
        for each in results.measured(is_replicated=True):
            figures = results.figures(each.name, task)
            took_s = max(took_s, figures["entries"] / figures["entries_per_s"] if figures else 0.0)
            rows.append((_name(each), _rate(results, each, task), *_sustained_cells(results, each, task, figures)))
        title = f"{size(task.entry_bytes)}, {grouped(task.in_flight)} in flight, {seconds(took_s)}"
        heading = (title, "per second", "replog's", "of the short load", "worst second", "p99.9", "CPU", "held")
        tables += [_table(heading, [row for row in rows if any(row[1:])])]
    words = (
        "What a short load does not show: files of which none was used before, and what a system does now and then, by its "
        "defaults (snapshots, compactions, rewritten files). Each has a start of its own from an empty directory, nothing "
        f"is deleted meanwhile; {counted(results.rounds_of('sustained'), 'round')} of it. *replog's*: how many times as "
        "many entries replog appends. *Of the short load*: entries per second as a share of those above. *Worst second*: "
        "the entries confirmed in the worst of its seconds. *CPU*: for an entry, of clients and servers together. *Held*: "
        "on the disks of all nodes, right after."
    )
    return ["## Appends without an end", words, *tables] if tables else []


def _sustained_cells(results: Results, candidate: Candidate, task: Task, figures: Figures) -> tuple[str, ...]:
    """What stands behind the rate; nothing where there is none."""
    if not figures:
        return ("",) * 6
    short = results.figures(candidate.name, Task("append", task.entry_bytes, task.in_flight))
    against = results.ratios(candidate.name, reference(candidate), task, "entries_per_s")
    return (
        ratio(statistics.median(against)) if against and candidate.name != reference(candidate) else "",
        f"{_rounded(figures['entries_per_s'] / short['entries_per_s'] * 100, 2):g} %" if short else "",
        grouped(figures["lowest_per_s"]) if "lowest_per_s" in figures else "",
        micros(figures["p999_us"]),
        cpu(figures["client_cpu_us"] + figures["server_cpu_us"]),
        size(figures["held_bytes"]),
    )


def _other(results: Results) -> list[str]:
    scans = _list([f"{grouped(each.entries)} of {size(each.entry_bytes)}" for each in results.tasks("scan")])
    words = (
        f"*Scan*: {scans or 'all'}, from the first to the last, into the client's memory. *Tail*: from the call of append "
        "until another reader has the entry in its hand, one after the other. *Take over*: from SIGKILL for the leader until "
        "an entry is confirmed again. *Restart*: from SIGKILL for all servers, which hold what was scanned, until an entry is "
        "confirmed; *held* is what their directories have then."
    )
    columns = _scan_columns(results)
    for task in results.tasks("tail"):
        columns += [("tail p50", task, _micros_of("p50_us")), ("tail p99", task, _micros_of("p99_us"))]
    columns += [("take over", task, _seconds_of("takeover_s")) for task in results.tasks("take-over")]
    columns += _restart_columns(results)
    table = _table_of(results, columns, is_replicated=True)
    return ["## Reading, taking over and restarting", words, *table] if table else []


def _alone(results: Results) -> list[str]:
    tables = []
    for entry_bytes, tasks in _by_size(results, is_replicated=False).items():
        columns: list[Column] = [(f"{grouped(each.entries_per_call)} per call", each, _rate_of) for each in tasks]
        lone = Task("append", entry_bytes, 1)
        columns += [("p50 of one", lone, _micros_of("p50_us")), ("p99 of one", lone, _micros_of("p99_us"))]
        tables += _table_of(results, columns, is_replicated=False, heading=size(entry_bytes))
    tables += _table_of(results, [*_scan_columns(results), *_restart_columns(results)], is_replicated=False)
    words = (
        "One node, within the client's process: a write-ahead log. Entries per second, each call synced before it returns; "
        "latencies of calls with one entry. *Restart* is of a process that was killed, and holds what was scanned."
    )
    return ["## One node", words, *tables] if tables else []


def _scan_columns(results: Results) -> list[Column]:
    return [(f"scan, {size(task.entry_bytes)}", task, _rate_of) for task in results.tasks("scan")]


def _restart_columns(results: Results) -> list[Column]:
    found: list[Column] = []
    for task in results.tasks("restart"):
        found += [("restart", task, _seconds_of("restart_s")), ("held", task, lambda found: size(found["held_bytes"]))]
    return found


def _table_of(results: Results, columns: Sequence[Column], *, is_replicated: bool, heading: str = "") -> list[str]:
    """A row for each system; none if there are no columns or no systems."""
    rows = [
        (_name(each), *(_cell(results, each, task, tell) for _, task, tell in columns))
        for each in results.measured(is_replicated=is_replicated)
    ]
    rows = [row for row in rows if any(row[1:])]
    return [_table((heading, *(each for each, *_ in columns)), rows)] if rows else []


def _rate_of(figures: Figures) -> str:
    return f"{grouped(figures['entries_per_s'])}/s"


def _micros_of(name: str) -> Tell:
    return lambda figures: micros(figures[name])


def _seconds_of(name: str) -> Tell:
    return lambda figures: seconds(figures[name])


def _not_there(results: Results) -> list[str]:
    lines = [f"- {each.title} was skipped: {each.missing}." for each in results.candidates if each.missing]
    seen: dict[tuple[str, str], list[str]] = {}
    for candidate in results.candidates:
        for task in dict.fromkeys(each.task for each in results.measurements if each.system == candidate.name):
            why = results.why_not(candidate.name, task)
            if why and why[0] in ("not measured", "failed"):
                words = f"{'failed: ' * (why[0] == 'failed')}{why[1].partition(chr(10))[0]}"
                seen.setdefault((candidate.title, words), []).append(task.words)
    lines += [f"- {title}: {'; '.join(tasks)}: {words}." for (title, words), tasks in seen.items()]
    return ["## Not measured", "\n".join(line.replace("..", ".") for line in lines)] if lines else []


def _reproduce(results: Results) -> list[str]:
    commands = "\n".join(results.commands)
    return ["## The commands", f"```\nmake peers    # gets the programs\n{commands}\n```"]


def _cell(results: Results, candidate: Candidate, task: Task, tell: Tell) -> str:
    """The figure, or why there is none."""
    figures = results.figures(candidate.name, task)
    if figures:
        return tell(figures)
    why = results.why_not(candidate.name, task)
    return {None: "", "not quiet": "*not quiet*", "failed": "*failed*"}.get(why and why[0], "-")


def _rate(results: Results, candidate: Candidate, task: Task) -> str:
    return _cell(results, candidate, task, lambda figures: grouped(figures["entries_per_s"]))


def _name(candidate: Candidate) -> str:
    mark = "" if candidate.promise.is_synced else "\\*"
    return f"**{candidate.title}**{mark}" if candidate.name in REFERENCE.values() else f"{candidate.title}{mark}"


def _chart(charts: Mapping[str, str], name: str, words: str) -> list[str]:
    return [f"![{words}]({charts[name]})"] if name in charts else []


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] + ["---:"] * (len(heading) - 1), *rows]
    if any(len(each) > 60 for row in lines[2:] for each in row):  # words, not figures
        lines[1] = ["---"] * len(heading)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _list(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def counted(number: int, name: str) -> str:
    """With an s, unless it is one."""
    return f"{number} {name}{'s' * (number != 1)}"


def grouped(value: float) -> str:
    """To three digits: 1 230 000."""
    rounded = _rounded(value)
    return f"{rounded:,.0f}".replace(",", " ") if rounded >= 10 else f"{rounded:g}"


def micros(value_us: float) -> str:
    """In the unit that reads best."""
    return f"{_rounded(value_us):g} µs" if value_us < 1_000 else seconds(value_us / 1e6)


def seconds(value_s: float) -> str:
    """In the unit that reads best."""
    return f"{_rounded(value_s * 1e3):g} ms" if value_s < 1 else f"{_rounded(value_s):g} s"


def cpu(value_us: float) -> str:
    """Always in microseconds, for they are to be compared."""
    return f"{_rounded(value_us, 2):g} µs"


def ratio(value: float) -> str:
    """To two digits: 0.87, 1.2, 23."""
    return f"{_rounded(value, 2):g}" if value < 1_000 else grouped(value)


def _rounded(value: float, digits: int = 3) -> float:
    return round(value, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0.0
