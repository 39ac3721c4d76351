"""Whether bookies are well: what `/health` says."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import attrs

from replog.bookie.serving import ServedBookie


class State(enum.Enum):
    """How a bookie is. The worst one of several counts."""

    SERVING = "serving"
    READ_ONLY = "read_only"  # it answers, and takes no new entries
    FAILED = "failed"  # its storage has stopped: only a restart helps, or another disk
    STARTING = "starting"
    LEAVING = "leaving"


_WELL = (State.SERVING, State.READ_ONLY)


@attrs.frozen
class Health:
    """How a process with bookies is. `problems` say by the bookie's id what ails it."""

    state: State
    bookies: Sequence[str] = ()
    problems: dict[str, str] = attrs.field(factory=dict)

    @property
    def is_well(self) -> bool:
        """Whether requests should be sent here: then `/health` has the status 200, else 503."""
        return self.state in _WELL

    def to_json(self) -> dict[str, object]:
        """What `/health` answers."""
        return {
            "state": self.state.value,
            "read_only": self.state is not State.SERVING,
            "bookies": list(self.bookies),
            "problems": self.problems,
        }


def health_of(bookies: Iterable[ServedBookie]) -> Health:
    """How bookies are that are being served."""
    state = State.SERVING
    names: list[str] = []
    problems: dict[str, str] = {}
    for each in bookies:
        server = each.server
        names.append(server.bookie_id)
        problem = server.failure or (server.space.error if server.is_read_only else None)
        if problem is not None:
            problems[server.bookie_id] = str(problem)
            # The worst state wins, in whatever order the bookies come.
            if state is not State.FAILED:
                state = State.READ_ONLY if server.failure is None else State.FAILED
    return Health(state, names, problems)
