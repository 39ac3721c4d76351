"""Rules of beginning left out (Q16): what proves that the schedules of `founding` would find it. `seeds` finds it at most."""

from __future__ import annotations

from replog.protocol.consensus import founding
from replog.protocol.consensus.founding import Founding
from tests.simulator.mutation import Mutant, Patch

_NAMES = Patch(
    Founding,
    "_try_to_begin",
    "addresses = {self._names[each]: each for each in self._peers}",
    "addresses = {name: each for each, name in self._names.items()}",
)
MUTANTS = (
    Mutant(
        "founds-with-majority",
        "Q16",
        "a founder begins when a majority has promised",
        (
            Patch(
                Founding,
                "_try_to_begin",
                "len(self._names) == len(self._peers)",
                "len(self._names) > len(self._peers) // 2",
            ),
            _NAMES,
        ),
        2000,
    ),
    Mutant(
        "member-accepts-offer",
        "Q16",
        "a process that has a cluster promises to take part in another one",
        (
            Patch(
                founding,
                "answer_of_member",
                "return Belongs",
                "return Promised(message.cluster) if isinstance(message, Offer) else Belongs",
            ),
        ),
        500,
    ),
    Mutant(
        "anybody-founds",
        "Q16",
        "each peer makes an offer",
        (
            Patch(Founding, "tick", "if not self._is_founder:", "if False:"),
            Patch(Founding, "_try_to_begin", "self._is_founder and ", ""),
            Patch(Founding, "_offered", " and address == self._peers[0]", ""),
            _NAMES,
        ),
        500,
    ),
)
