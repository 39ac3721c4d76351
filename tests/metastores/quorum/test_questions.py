"""Questions and answers as bytes, and the messages between members: read as they were written, and anything else is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.abc import ValuesPage, Versioned
from replog.errors import RemoteProtocolError
from replog.metastores.quorum import questions
from replog.metastores.quorum.copies import CopyInParts
from replog.metastores.quorum.frames import FrameKind, MemberFrame
from replog.metastores.quorum.questions import Answer, AnswerKind, Question, QuestionKind
from replog.protocol.consensus.commands import LEASE, Command, Outcome, Status, What

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1, max_size=20)
versions = st.integers(0, (1 << 63) - 1)


@given(
    st.one_of(
        st.builds(Question, st.sampled_from((QuestionKind.GET, QuestionKind.CHILDREN, QuestionKind.VALUES)), words),
        st.builds(
            Question,
            st.just(QuestionKind.CHANGE),
            command=st.builds(
                Command,
                st.binary(min_size=16, max_size=16),
                versions,
                st.sampled_from(What),
                words,
                st.binary(min_size=LEASE.size),
            ),
        ),
        st.builds(Question, st.sampled_from(tuple(questions.OF_ADMINISTRATORS)), facts=st.dictionaries(words, words)),
    )
)
def test_questions_are_read_as_they_were_written(question: Question) -> None:
    assert Question.decode(question.encode()) == question


def test_answers_are_read_as_they_were_written() -> None:
    found = Answer.decode(questions.found(7, questions.value_payload(3, b"value")))
    assert (found.kind, found.index, found.versioned()) == (AnswerKind.FOUND, 7, Versioned(b"value", 3))
    assert Answer.decode(questions.missing(7)) == Answer(AnswerKind.MISSING, 7)
    assert Answer.decode(questions.not_leader("m1:1", ("m1:1", "m2:2"))).members() == ("m1:1", ("m1:1", "m2:2"))
    assert Answer.decode(questions.not_leader(None, ())).members() == (None, ())
    assert Answer.decode(questions.found(1, questions.words_payload(["a", "b"]))).words() == ["a", "b"]
    assert Answer.decode(questions.found(1, questions.words_payload([]))).words() == []
    rows = [("a", 1, b"x"), ("b", 2, b"")]
    values = {"a": Versioned(b"x", 1), "b": Versioned(b"", 2)}
    assert Answer.decode(questions.found(1, questions.page_payload(rows, 2))).page() == ValuesPage(values, None)
    assert Answer.decode(questions.found(1, questions.page_payload([], 2))).page() == ValuesPage({}, None)
    outcome = Outcome(Status.CONFLICT, 9)
    assert Answer.decode(questions.found(1, outcome.encode())).outcome() == outcome
    assert Answer.decode(questions.other(AnswerKind.REFUSED, "why")).text == "why"


def test_page_ends_by_its_values_or_by_their_bytes() -> None:
    rows = [(f"{number}", number, b"v" * 600_000) for number in range(4)]
    for count_max, words, next_first in ((1, ["0"], "1"), (9, ["0"], "1")):
        page = Answer.decode(questions.found(1, questions.page_payload(rows, count_max))).page()
        assert (list(page.values), page.next_first) == (words, next_first), "one value is always in a page"
    small = [(f"{number}", number, b"v") for number in range(4)]
    page = Answer.decode(questions.found(1, questions.page_payload(small, 3))).page()
    assert (list(page.values), page.next_first) == (["0", "1", "2"], "3")


def test_page_with_an_end_missing_is_refused() -> None:
    payload = questions.page_payload([("first", 1, b"value"), ("second", 2, b"another")], 1)
    between = len(payload) - len(questions.page_payload([("first", 1, b"value")], 1)) + 2  # where the value begins
    for size in {*range(len(payload))} - {between}:
        with pytest.raises(RemoteProtocolError, match="ends within a value"):
            Answer(AnswerKind.FOUND, 0, payload[:size]).page()


@pytest.mark.parametrize("facts", [{"first": 1}, {"count_max": 0}, {"count_max": "all"}, {"count_max": True}])
def test_question_for_a_page_of_nonsense_is_refused(facts: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError, match="a page of"):
        Question(QuestionKind.VALUES, "a", facts=facts).page()


@given(st.binary(max_size=60))
def test_anything_else_is_refused_by_name(data: bytes) -> None:
    """No bytes of another process raise anything but a named error."""
    readers = [Question.decode, MemberFrame.decode, CopyInParts().page, CopyInParts().message, Answer.decode]
    answer = Answer(AnswerKind.FOUND, 0, data)
    for read in readers:
        with contextlib.suppress(RemoteProtocolError):
            read(data)
    for look in (answer.facts, answer.members, answer.versioned, answer.words, answer.page, answer.outcome):
        with contextlib.suppress(RemoteProtocolError):
            look()


frames = st.builds(MemberFrame, st.sampled_from(FrameKind), words, words, words, st.binary(max_size=50))


@given(frames)
def test_frames_are_read_as_they_were_written(frame: MemberFrame) -> None:
    assert MemberFrame.decode(frame.encode()) == frame


@given(frames, st.integers(0, 40))
def test_frame_that_ends_early_is_refused(frame: MemberFrame, size: int) -> None:
    data = frame.encode()
    head = len(data) - len(frame.payload)
    if size < head:
        with pytest.raises(RemoteProtocolError):
            MemberFrame.decode(data[:size])
