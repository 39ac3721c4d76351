"""Whether bookies are well: what `/health` says."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import attrs

from replog.bookie.server import BookieServer
from replog.bookie.serving import ServedBookie, figures_beside, server_of


class State(enum.Enum):
    """How a bookie is. The worst one of several counts."""

    SERVING = "serving"
    METASTORE_DOUBTED = "metastore_doubted"  # its metastore seems to have gone back: it takes no new ledgers (B6a)
    READ_ONLY = "read_only"  # it answers, and takes no new entries
    FAILED = "failed"  # its storage has stopped: only a restart helps, or another disk
    STARTING = "starting"
    LEAVING = "leaving"


_WELL = (State.SERVING, State.READ_ONLY, State.METASTORE_DOUBTED)

_BY_SEVERITY = (State.SERVING, State.READ_ONLY, State.METASTORE_DOUBTED, State.FAILED)


# Of the member of a metastore in this process, as `ServedBookie.statistics` has them.
_OF_MEMBER = (
    "metastore_leads",
    "metastore_term",
    "metastore_committed_index",
    "metastore_stopped",
    "metastore_survives",
)


@attrs.frozen
class Health:
    """How a process with bookies is. `problems` say by the bookie's id what ails it; `metastore` is what the member of a
    metastore in this process knows, if there is one."""

    state: State
    bookies: Sequence[str] = ()
    problems: dict[str, str] = attrs.field(factory=dict)
    metastore: dict[str, float] = attrs.field(factory=dict)

    @property
    def is_well(self) -> bool:
        """Whether requests should be sent here: then `/health` has the status 200, else 503."""
        return self.state in _WELL

    def to_json(self) -> dict[str, object]:
        """The answer of `/health`."""
        return {
            "state": self.state.value,
            "read_only": self.state is not State.SERVING,
            "bookies": list(self.bookies),
            "problems": self.problems,
            **({"metastore": self.metastore} if self.metastore else {}),
        }


def _state_of(server: BookieServer) -> State:
    if server.failure is not None:
        return State.FAILED
    return State.READ_ONLY if server.is_read_only else State.METASTORE_DOUBTED


def health_of(bookies: Iterable[ServedBookie]) -> Health:
    """How bookies are that are being served."""
    state = State.SERVING
    names: list[str] = []
    problems: dict[str, str] = {}
    metastore: dict[str, float] = {}
    for each in bookies:
        server = server_of(each)
        names.append(server.bookie_id)
        problem = server.failure or (server.space.error if server.is_read_only else server.guard.problem or None)
        if problem is not None:
            problems[server.bookie_id] = str(problem)
            # The worst state wins, in any order of the bookies.
            state = max(state, _state_of(server), key=_BY_SEVERITY.index)
        beside = [figure for figures in figures_beside(each) for figure in figures().items()]
        metastore |= {name.removeprefix("metastore_"): value for name, value in beside if name in _OF_MEMBER}
    if metastore.get("stopped"):
        problems["metastore"] = "its member of the metastore has stopped: the log says why, and the other members go on"
    return Health(state, names, problems, metastore)
