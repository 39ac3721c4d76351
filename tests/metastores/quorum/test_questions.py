"""Questions and answers as bytes, and the messages between members: read as they were written, and anything else is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.abc import Versioned
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
    values = questions.values_payload({"a": (1, b"x"), "b": (2, b"")})
    assert Answer.decode(questions.found(1, values)).values() == {"a": Versioned(b"x", 1), "b": Versioned(b"", 2)}
    outcome = Outcome(Status.CONFLICT, 9)
    assert Answer.decode(questions.found(1, outcome.encode())).outcome() == outcome
    assert Answer.decode(questions.other(AnswerKind.REFUSED, "why")).text == "why"


@given(st.binary(max_size=60))
def test_anything_else_is_refused_by_name(data: bytes) -> None:
    """No bytes of another process raise anything but a named error."""
    readers = [Question.decode, MemberFrame.decode, CopyInParts().page, CopyInParts().message, Answer.decode]
    answer = Answer(AnswerKind.FOUND, 0, data)
    for read in readers:
        with contextlib.suppress(RemoteProtocolError):
            read(data)
    for look in (answer.facts, answer.members, answer.versioned, answer.words, answer.values, answer.outcome):
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
