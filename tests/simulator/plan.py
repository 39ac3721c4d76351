"""The parts of one simulated run: sizes, rates and operations, as a value that can be written down and cut smaller.

All of a plan is drawn from its seed before the run begins. The fate of a single message is drawn from the seed and the
message's own identity (who to whom, what, of which entry, for the how-manieth time), never from a shared stream: so
leaving out an operation or a fault leaves the rest of the schedule as it was, and a failing plan can be shrunk.
"""

from __future__ import annotations

import attrs

from replog.errors import LocalProtocolError
from replog.protocol.digest import DigestType
from replog.protocol.quorum import Quorum

MASK = (1 << 64) - 1
UNBOUNDED_LOG = "unbounded-log"
CHUNKS = "chunks"
CHUNKS_LOG = "chunks-log"
LOG_SCENARIOS = ("log", UNBOUNDED_LOG, CHUNKS_LOG)
REQUESTS = (
    "add",
    "fence",
    "recovery-read",
    "read",
    "read-confirmed",
    "write-confirmed",
    "get",
    "cas",
    "create",
    "delete",
)
CHOICES = (
    "sync",
    "tear",
    "collect",
    "choose",
    "order",
    "refuse",
    "doubt",
    "damage",
    "batch",
    "deadline",
    "speculate",
    "boast",
)
ANSWER_KINDS = {request: f"{request}:answer" for request in REQUESTS}
KIND_NUMBERS = {kind: number for number, kind in enumerate((*REQUESTS, *ANSWER_KINDS.values(), *CHOICES))}
METASTORE = "m"


def mix(number: int) -> int:
    """64 bits that look like chance, from a number (splitmix64)."""
    number = (number + 0x9E3779B97F4A7C15) & MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)


def node_number(name: str) -> int:
    """A number below 4096 for "b3", "w1", "m" and their like: a letter and at most two digits."""
    return (ord(name[0]) - ord("a")) * 128 + int(name[1:] or 0)


def node_name(number: int) -> str:
    """The inverse."""
    letter, index = chr(ord("a") + number // 128), number % 128
    return letter if letter == METASTORE else f"{letter}{index}"


@attrs.frozen
class Rates:
    """How often messages suffer, in 1/1024, while the faults last; and how long a client waits for an answer."""

    lost: int = 0
    duplicated: int = 0
    delayed: int = 0
    damaged: int = 0  # of read answers
    slow_sync: int = 0
    full: int = 0  # commits that find no space
    metastore_lost: int = 0
    metastore_delayed: int = 0
    metastore_back: int = 0  # readings that find what the metastore had before, until the faults end
    nobody: int = 0  # a placement that finds no replacement
    same: int = 0  # a placement that gives the failed bookie again
    refused: int = 0  # adds, by a bookie that is read-only or busy
    doubted: int = 0  # reads, by a bookie that can't tell
    holes: int = 0  # adds that are lost, beside `lost`
    delay_bits: int = 10  # a delayed message takes up to 2 to this
    spread: int = 16  # an ordinary one up to this
    timeout: int = 300
    patience: int = (
        20  # of recoveries, with who is silent: short, since to close over an answer that is late is dangerous
    )

    def __str__(self) -> str:
        given = attrs.asdict(self)
        return " ".join(f"{name}={value}" for name, value in given.items() if value != getattr(_USUAL, name))


_USUAL = Rates()


@attrs.frozen
class Op:
    """One thing that is done to the world at a time: `at 120 append w1 2`."""

    time: int
    verb: str
    node: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((f"at {self.time} {self.verb} {self.node}", *self.arguments))

    @classmethod
    def parse(cls, line: str) -> Op:
        """Reads what `str` gives."""
        match line.split():
            case ["at", time, verb, node, *arguments]:
                return cls(int(time), verb, node, tuple(arguments))
        raise LocalProtocolError(f"{line!r} is no operation: one looks like `at 120 append w1 2`")


@attrs.frozen
class Fault:
    """The fate of one message, sync or choice: named by sender, receiver, kind and number; `lose w1>b3 add 4 #0`.

    `subject` tells the ledger and the entry: 1000 * ledger + entry for most kinds."""

    effect: str
    source: int
    target: int
    kind: str
    subject: int
    count: int
    amount: int = 0

    def __str__(self) -> str:
        where = f"{node_name(self.source)}>{node_name(self.target)} {self.kind} {self.subject} #{self.count}"
        return f"{self.effect} {where}" + (f" {self.amount}" if self.amount else "")

    @property
    def key(self) -> tuple[int, int, str, int, int]:
        """The identity of what suffers."""
        return self.source, self.target, self.kind, self.subject, self.count

    @classmethod
    def parse(cls, line: str) -> Fault:
        """Reads what `str` gives."""
        match line.split():
            case [effect, way, kind, subject, count, *amount] if ">" in way and count.startswith("#"):
                source, _, target = way.partition(">")
                numbers = node_number(source), node_number(target)
                return cls(effect, *numbers, kind, int(subject), int(count[1:]), int(amount[0]) if amount else 0)
        raise LocalProtocolError(f"{line!r} is no fault: one looks like `lose w1>b3 add 1004 #0`")


@attrs.frozen
class Plan:
    """One run. With `faults`, exactly these happen; with None they are drawn by `rates`."""

    seed: int
    scenario: str
    strategy: str
    quorum: Quorum
    bookies: int
    rates: Rates
    ops: tuple[Op, ...]
    heal_at: int
    faults: tuple[Fault, ...] | None = None
    digest_type: DigestType = DigestType.CRC32C
    away: int = 0  # indices at most of each new ledger whose bookies its creator believes to be away (C7)
    overlook: frozenset[str] = frozenset()  # rules that the oracle doesn't check: what would follow from breaking them?
