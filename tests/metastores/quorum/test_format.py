"""The bytes of members, on disks and on the wire: they change only together with `tests/formats/metastore-members-v1.txt`."""

from __future__ import annotations

from pathlib import Path

import attrs

from replog.metastores.quorum import questions
from replog.metastores.quorum.copies import StateCopy, copy_payload, page_payload
from replog.metastores.quorum.frames import FrameKind, MemberFrame
from replog.metastores.quorum.questions import Answer, AnswerKind, Question, QuestionKind
from replog.protocol.consensus.codec import decode_base, decode_entry, encode_base, encode_entry
from replog.protocol.consensus.commands import LEASE, TERM, Command, Outcome, Status, What, encode_commands
from replog.protocol.consensus.groups import Membership
from replog.protocol.consensus.log import Base, Kind, LogEntry
from replog.protocol.consensus.message_codec import decode_message, encode_message
from replog.protocol.consensus.messages import Append, Appended, Ask, Copy, MayAsk, Vote, VoteRequest
from replog.protocol.consensus.registers import Registers, first_rows
from tests.simulator.council.rows import MemoryRows

GOLDEN = Path(__file__).parents[2] / "formats" / "metastore-members-v1.txt"

_MEMBERS = Membership((("n1", "n2"), ("n2", "n3")), {"n1": "m1:1", "n2": "m2:1", "n3": "m3:1"})
_BASE = Base(5, 2, _MEMBERS)
_COMMANDS = [
    Command(bytes(range(16)), 4, What.CREATE, "a/b", b"v"),
    Command(bytes(range(1, 17)), 4, What.PUT, "a/b", b"w", 1),
    Command(bytes(range(2, 18)), 4, What.DELETE, "a/b", expected=2),
    Command(bytes(range(3, 19)), 4, What.ANNOUNCE, "a/c", LEASE.pack(10_000) + b"v"),
    Command(bytes(range(4, 20)), 4, What.EXPIRE, "a/d", TERM.pack(3), 7),
]
_BODY = encode_commands(1_700_000_000_000, _COMMANDS, (3, 0x0123456789ABCDEF))
_ENTRIES = {
    "noop": LogEntry(3, Kind.NOOP),
    "commands": LogEntry(3, Kind.COMMANDS, _BODY),
    "change": LogEntry(3, Kind.CHANGE, members=_MEMBERS),
    "settle": LogEntry(3, Kind.SETTLE, members=_MEMBERS.settled()),
}
_MESSAGES = (
    Ask(1, 2, 3, 4),
    MayAsk(1, 2, True),
    VoteRequest(1, 2, 3),
    Vote(1, False),
    Append(1, 2, 3, (LogEntry(3, Kind.NOOP),), 4, 5),
    Copy(1, _BASE, 2),
    Appended(1, True, 2, 3),
)
_QUESTIONS = (
    *(Question(kind, "a") for kind in (QuestionKind.GET, QuestionKind.CHILDREN)),
    Question(QuestionKind.VALUES, "a", facts={"first": "b", "count_max": 9}),
    Question(QuestionKind.ANNOUNCED, "a", facts={"first": ""}),
    Question(QuestionKind.CHANGE, command=_COMMANDS[0]),
    Question(QuestionKind.STATUS),
    Question(QuestionKind.ADD, facts={"address": "m4:1"}),
    Question(QuestionKind.REMOVE, facts={"member": "m3:1"}),
    Question(QuestionKind.REPLACE, facts={"member": "m3:1", "address": "m4:1"}),
    Question(QuestionKind.BEAT, "a", facts={"version": 7}),
    Question(QuestionKind.WAIT, "a", facts={"version": 7}),
    Question(QuestionKind.WAIT, "a", facts={"words": questions.digest_of(["b", "c"])}),
)


def rows() -> dict[bytes, bytes]:
    """The rows of a state behind an entry with each command, and one of a state that was copied from another metastore."""
    state = MemoryRows(first_rows({"a/d": b"v"}))
    Registers(state).apply(6, encode_commands(1_700_000_000_000, _COMMANDS), 3)
    return state.content


def golden() -> dict[str, bytes]:
    found = {f"entry {name}": encode_entry(entry) for name, entry in _ENTRIES.items()} | {"base": encode_base(_BASE)}
    found |= {f"message {type(each).__name__}": encode_message(each) for each in _MESSAGES}
    found |= {f"question {number} {each.kind.name}": each.encode() for number, each in enumerate(_QUESTIONS)}
    found["frame MESSAGE"] = MemberFrame(FrameKind.MESSAGE, "c1", "n1", "m1:1", encode_message(_MESSAGES[0])).encode()
    (page,) = StateCopy.of([(b"ka", b"v"), (b"kb", b"w")]).pages
    found["payload PAGE"] = page_payload(1, 0, page)
    found["payload COPY"] = copy_payload(1, 1, encode_message(_MESSAGES[5]))
    found["answer FOUND value"] = questions.found(7, questions.value_payload(3, b"v"))
    found["answer FOUND words"] = questions.found(7, questions.words_payload(["a", "b"]))
    found["answer FOUND page"] = questions.found(7, questions.page_payload([("a", 1, b"v"), ("b", 2, b"w")], 1))
    found["answer FOUND outcome"] = questions.found(7, Outcome(Status.CONFLICT, 9).encode())
    found["answer MISSING"] = questions.missing(7)
    found["answer NOT_LEADER"] = questions.not_leader("m1:1", ("m1:1", "m2:1"))
    found["answer REFUSED"] = questions.other(AnswerKind.REFUSED, "why")
    return found | {f"row {row!r}": value for row, value in sorted(rows().items())}


def written(found: dict[str, bytes]) -> str:
    return "".join(f"{name}: {data.hex()}\n" for name, data in found.items())


def test_bytes_are_those_of_the_golden_file() -> None:
    assert GOLDEN.read_text(encoding="utf-8") == written(golden())


def test_golden_bytes_are_read() -> None:
    stored = dict(line.split(": ", 1) for line in GOLDEN.read_text(encoding="utf-8").splitlines())
    data = {name: bytes.fromhex(text) for name, text in stored.items()}
    for name, entry in _ENTRIES.items():
        assert decode_entry(data[f"entry {name}"]) == entry
    assert decode_base(data["base"]) == _BASE
    for message in _MESSAGES:
        assert decode_message(data[f"message {type(message).__name__}"]) == message
    for number, question in enumerate(_QUESTIONS):
        assert Question.decode(data[f"question {number} {question.kind.name}"]) == question
    assert Answer.decode(data["answer NOT_LEADER"]).members() == ("m1:1", ("m1:1", "m2:1"))
    frame = MemberFrame(FrameKind.MESSAGE, "c1", "n1", "m1:1", encode_message(_MESSAGES[0]))
    assert attrs.asdict(MemberFrame.decode(data["frame MESSAGE"])) == attrs.asdict(frame)
