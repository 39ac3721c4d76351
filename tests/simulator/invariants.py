"""The oracle: what must be true after every step, looked up on the bookies' disks and in the metastore's history.

It never asks the code under test, but for what clients were told (confirmed, delivered, finished). Names in brackets
are those of the rules in the protocol and of the invariants: I1 nothing confirmed lies past a closed ledger's end, I2
nothing confirmed is lost or changed, I3 a closed ledger is at its ack quorums, I4 order, I5 valid fragments, O1 two
readers never differ, O3 readers go on without a gap, O5 one confirmation for each entry, O8 metadata history, O9 an
identity has one payload, O10 a negative recovery answer is for ever.
"""

from __future__ import annotations

from tests.simulator.bookie_checks import BookieChecks
from tests.simulator.client_checks import ClientChecks
from tests.simulator.facts import Facts
from tests.simulator.log_checks import LogChecks
from tests.simulator.record_checks import RecordChecks
from tests.simulator.world import World


class Oracle:
    """Watches a world's ledgers, and the log if there is one."""

    def __init__(self, world: World) -> None:
        self.facts = Facts(world)
        self.fail = self.facts.fail
        self.bookies = BookieChecks(self.facts)
        self.clients = ClientChecks(self.facts)
        self.log = LogChecks(self.facts)
        self.records = RecordChecks(self.facts, self.log)
