"""The output of `replog cluster`: a live table on a terminal, a line for each change anywhere else, or JSON."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

import attrs
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from replog.cli.cluster.bookie_processes import Member, Plan, State
from replog.cli.output import add_row, as_size, emit, flush, new_table, print_json_line

_COLORS = {
    State.STARTING: "yellow",
    State.SERVING: "green",
    State.WAITING: "yellow",
    State.DEAD: "red",
    State.LEAVING: "yellow",
    State.LEFT: "",
}


@attrs.frozen
class Load:
    """The present load of a bookie."""

    entries_per_s: float = 0.0
    bytes_per_s: float = 0.0
    queued_bytes: float = 0.0
    commit_p99_s: float | None = None
    ledgers: float = 0.0


def examples(plan: Plan) -> list[str]:
    """Commands to type in another terminal."""
    # The default quorum needs three bookies; with fewer, the command as shown would fail.
    quorum = "" if plan.bookies >= 3 else f" --quorum {plan.bookies},{plan.bookies},{plan.bookies}"
    return [
        f"export REPLOG_METASTORE={shlex.quote(plan.metastore)}",
        f"seq 5 | replog log append numbers{quorum}",
        "replog log read numbers",
        "replog top",
    ]


class View:
    """One way to show the cluster, as a context manager. The cluster calls it for each event."""

    wants_loads = False

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def changed(self, member: Member) -> None:
        """The state of a bookie has changed."""

    def ready(self) -> None:
        """All bookies serve."""

    def loads(self, members: Sequence[Member], loads: Mapping[str, Load]) -> None:
        """The loads of the bookies, by their ids."""


class LineView(View):
    """A line for each change."""

    def changed(self, member: Member) -> None:
        details = [member.address, f"pid {member.pid}" if member.pid else "", member.problem]
        emit(f"{member.name}  {member.state.value}  {'  '.join(filter(None, details))}".rstrip() + "\n")
        flush()

    def ready(self) -> None:
        emit("".join(f"{each}\n" for each in ("all bookies serve; in another terminal:", *_indented(self.plan))))
        flush()


class JSONView(View):
    """An object in a line for each change."""

    def changed(self, member: Member) -> None:
        print_json_line("bookie", member.to_json())
        flush()

    def ready(self) -> None:
        facts = {"state": "serving", "metastore": self.plan.metastore, "directory": str(self.plan.directory)}
        print_json_line("cluster", {**facts, "bookies": self.plan.bookies, "storage": self.plan.storage})
        flush()


class LiveView(View):
    """A table that is drawn again and again."""

    wants_loads = True

    def __init__(self, plan: Plan, console: Console) -> None:
        super().__init__(plan)
        self._members: Sequence[Member] = ()
        self._loads: Mapping[str, Load] = {}
        self._is_ready = False
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> View:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._draw()
        self._live.stop()

    def ready(self) -> None:
        self._is_ready = True

    def loads(self, members: Sequence[Member], loads: Mapping[str, Load]) -> None:
        self._members, self._loads = members, loads
        self._draw()

    def _draw(self) -> None:
        table = new_table("bookie", "state", "at", ">pid", ">restarts", ">entries/s", ">per s", ">waiting", ">p99", "")
        for each in self._members:
            load = self._loads.get(each.bookie_id) if each.state is State.SERVING else None
            add_row(
                table,
                each.name,
                Text(each.state.value, style=_COLORS[each.state]),
                each.address or None,
                each.pid or None,
                each.restarts,
                *(_shown(load)),
                each.problem,
            )
        words = [Text(each) for each in _indented(self.plan)] if self._is_ready else [Text("  starting ...")]
        self._live.update(Group(table, *words, Text("Ctrl-C ends it.", style="dim")), refresh=True)


def _indented(plan: Plan) -> list[str]:
    return [f"  {each}" for each in examples(plan)]


def _shown(load: Load | None) -> tuple[str | None, ...]:
    if load is None:
        return (None,) * 4
    p99 = None if load.commit_p99_s is None else f"{1000 * load.commit_p99_s:.1f} ms"
    return f"{load.entries_per_s:.0f}", as_size(int(load.bytes_per_s)), as_size(int(load.queued_bytes)), p99
