"""Messages on the wire: round trips, and decoders that survive any bytes. Golden bytes stand in tests/formats."""

from __future__ import annotations

import contextlib
import itertools
import random
import struct
import time
import tracemalloc

import attrs
import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

from replog.errors import LocalProtocolError, RemoteProtocolError
from replog.protocol import wire
from replog.protocol.batch import Batch, build
from replog.protocol.digest import Digest, DigestType
from replog.protocol.messages import (
    AddRequest,
    AdminCommand,
    AdminRequest,
    CopyReadRequest,
    CopyRequest,
    FenceRequest,
    MetastorePurpose,
    MetastoreRequest,
    RangesRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Request,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.proofs import PROOF_BYTES_MAX
from replog.protocol.wire import Frame, FrameSplitter
from tests.lanes.seeds import examples

LEAST, MOST = -(1 << 63), (1 << 63) - 1
PASSWORD = b"secret"


def batch_of(payloads: list[bytes], digest_type: DigestType = DigestType.CRC32C, first_entry_id: int = 4) -> Batch:
    return build(
        Digest(digest_type, 7, PASSWORD),
        ledger_id=7,
        first_entry_id=first_entry_id,
        stride=1,
        payloads=payloads,
        last_add_confirmed=first_entry_id - 1,
        stamp=1,
        timestamp_ns=5,
        cumulative_length=100,
    )


numbers = st.integers(LEAST, MOST) | st.sampled_from([LEAST, -1, 0, 1, MOST])
request_ids = st.integers(0, (1 << 64) - 1)
ledger_ids = st.integers(0, MOST)
keys = st.binary(min_size=32, max_size=32)
keys_or_nothing = st.just(b"") | keys.filter(any)  # zeros are no key
proofs = st.binary(max_size=PROOF_BYTES_MAX)  # which the wire doesn't look into
some_batches = st.builds(
    batch_of,
    st.lists(st.binary(max_size=40), min_size=1, max_size=5),
    st.sampled_from(DigestType),
    st.integers(0, 1 << 62),
)
ledger_ids = st.integers(0, MOST) | st.sampled_from([0, MOST])  # below 0 there are none: such a request is refused
requests = st.one_of(
    st.builds(AddRequest, request_ids, ledger_ids, keys, numbers, some_batches, st.booleans(), proofs, st.booleans()),
    st.builds(FenceRequest, request_ids, ledger_ids, keys, numbers),
    st.builds(RecoveryReadRequest, request_ids, ledger_ids, keys, numbers, numbers, numbers),
    st.builds(ReadRequest, request_ids, ledger_ids, keys, numbers, numbers, numbers),
    st.builds(ReadLastAddConfirmedRequest, request_ids, ledger_ids, keys, numbers, numbers),
    st.builds(
        ReadLastAddConfirmedRequest,
        request_ids,
        ledger_ids,
        keys,
        numbers,
        numbers,
        numbers,
        numbers,
        numbers.filter(bool),  # 0 bytes: no batches are wanted, and the other two are not sent
    ),
    st.builds(WriteLastAddConfirmedRequest, request_ids, ledger_ids, keys, numbers, proofs),
    st.builds(AdminRequest, request_ids, st.sampled_from(AdminCommand)),
    st.builds(
        CopyRequest,
        request_ids,
        ledger_ids,
        keys_or_nothing,
        numbers,
        some_batches,
        st.just(True),
        stored_key=keys_or_nothing,
    ),
    st.builds(CopyReadRequest, request_ids, ledger_ids, keys_or_nothing, numbers, numbers, numbers),
    st.builds(RangesRequest, request_ids, ledger_ids, keys_or_nothing, numbers, numbers, numbers),
    st.builds(MetastoreRequest, request_ids, st.sampled_from(MetastorePurpose), st.binary(max_size=100)),
)
responses = st.builds(
    Response,
    request_ids,
    st.sampled_from(Status),
    numbers,
    numbers,
    st.lists(some_batches, max_size=4).map(tuple),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
    st.booleans(),
    proofs,
) | st.builds(Response, request_ids, st.sampled_from(Status), body=st.binary(max_size=100))
short_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
nonces = st.binary(min_size=32, max_size=32)
shorts, features = st.integers(0, (1 << 16) - 1), st.integers(0, (1 << 64) - 1)
greetings = st.one_of(
    st.builds(wire.Hello, shorts, shorts, features, nonces, short_texts, short_texts, short_texts),
    st.builds(wire.Welcome, shorts, features, nonces, short_texts, st.binary(max_size=100), short_texts),
    st.builds(wire.Prove, st.binary(max_size=1000)),
    st.builds(wire.Ready, st.binary(max_size=100), short_texts, features, features),
    st.builds(wire.Refuse, short_texts, st.booleans()),
)


def encoded_request(request: Request) -> bytes:
    pieces: list[bytes] = []
    size = wire.encode_request(request, pieces)
    data = b"".join(pieces)
    assert size == len(data)
    return data


def encoded_response(response: Response) -> bytes:
    pieces: list[bytes] = []
    size = wire.encode_response(response, pieces)
    data = b"".join(pieces)
    assert size == len(data)
    return data


def only_frame(data: bytes) -> Frame:
    splitter = FrameSplitter(wire.FRAME_BYTES_MAX)
    (frame,) = splitter.feed(data)
    assert splitter.is_empty
    return frame


def contents(frames: list[Frame]) -> list[tuple[int, int, int, bytes, bytes]]:
    return [(frame.kind, frame.flags, frame.request_id, frame.fields, frame.body) for frame in frames]


# -- round trips ---------------------------------------------------------------------------------------------------


@given(requests)
def test_a_request_arrives_as_it_was_sent(request: Request) -> None:
    assert wire.decode_request(only_frame(encoded_request(request))) == request


@given(requests, st.integers(LEAST, -1))
def test_impossible_ledger_is_refused(request: Request, ledger_id: int) -> None:
    """A bookie would store what is asked of it, and stumble over it when it looks for garbage."""
    if isinstance(request, AdminRequest | MetastoreRequest):
        reject()
    request.ledger_id = ledger_id
    frame = only_frame(encoded_request(request))
    with pytest.raises(RemoteProtocolError, match="there can be none"):
        wire.decode_request(frame)


@given(responses)
def test_an_answer_arrives_as_it_was_sent(response: Response) -> None:
    assert wire.decode_response(only_frame(encoded_response(response))) == response


@given(greetings)
def test_a_greeting_arrives_as_it_was_sent(greeting: wire.Greeting) -> None:
    assert wire.decode_greeting(only_frame(wire.encode_greeting(greeting))) == greeting


def test_a_batch_is_copied_verbatim() -> None:
    """W3."""
    batch = batch_of([b"one", b"two"])
    pieces: list[bytes] = []
    wire.encode_request(AddRequest(1, 7, bytes(32), 1, batch), pieces)
    assert pieces[-1] is batch.data
    wire.encode_response(Response(1, Status.OK, batches=(batch, batch)), pieces)
    assert pieces[-1] is pieces[-2] is batch.data


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_a_request_for_several_bookies_is_encoded_once(digest_type: DigestType) -> None:
    request = AddRequest(1, 7, bytes(32), 3, batch_of([b"x"], digest_type), recovery=True)
    pieces: list[bytes] = []
    sizes = [wire.encode_request(request, pieces) for _ in range(2)]
    assert pieces[0] is pieces[2]
    assert pieces[1] is pieces[3] is request.batch.data
    assert sizes == [len(pieces[0]) + len(pieces[1])] * 2
    assert wire.decode_request(only_frame(b"".join(pieces[2:]))) == request
    for other in (
        attrs.evolve(request, recovery=False),
        attrs.evolve(request, request_id=2),
    ):  # another one, other bytes
        assert wire.decode_request(only_frame(encoded_request(other))) == other


@pytest.mark.parametrize(
    "request_",
    [
        FenceRequest(1, 1 << 63, bytes(32), 1),
        FenceRequest(1 << 64, 1, bytes(32), 1),
        FenceRequest(-1, 1, bytes(32), 1),
        FenceRequest(1, 1, bytes(31), 1),
        ReadRequest(1, 1, bytes(33), 0, 1, 1),
        ReadLastAddConfirmedRequest(1, 1, bytes(32), 0, 1 << 64),
    ],
)
def test_unreadable_message_is_not_sent(request_: Request) -> None:
    pieces: list[bytes] = []
    with pytest.raises(LocalProtocolError):
        wire.encode_request(request_, pieces)
    assert not pieces


def test_fields_of_later_versions_are_skipped() -> None:
    for request in (
        FenceRequest(1, 7, bytes(32), 3),
        AddRequest(1, 7, bytes(32), 3, batch_of([b"x"]), False, b"proof"),
    ):
        frame = only_frame(encoded_request(request))
        later = wire.seal(frame.kind, frame.flags, 1, frame.fields + b"later", len(frame.body)) + frame.body
        assert wire.decode_request(only_frame(later)) == request
    response = Response(1, Status.OK, 5, 6, (batch_of([b"x"]),), "detail")
    frame = only_frame(encoded_response(response))
    later = wire.seal(frame.kind, 0, 1, frame.fields + b"later", len(frame.body)) + frame.body
    assert wire.decode_response(only_frame(later)) == response
    for greeting in (
        wire.Hello(1, 2, 3, bytes(32), "b", "none", "s"),
        wire.Ready(b"", "", 1, 2),
        wire.Refuse("no", True),
    ):
        frame = only_frame(wire.encode_greeting(greeting))
        later = wire.seal(frame.kind, frame.flags, 0, frame.fields + b"later")
        assert wire.decode_greeting(only_frame(later)) == greeting


def test_details_and_reasons_are_cut_where_they_would_not_fit() -> None:
    response = wire.decode_response(
        only_frame(encoded_response(Response(1, Status.UNKNOWN, detail="ä" * wire.FIELDS_BYTES_MAX)))
    )
    assert set(response.detail[:-1]) == {"ä"}
    assert len(response.detail) > 100_000
    frame = wire.encode_greeting(wire.Refuse("ä" * 100_000, retry=False))
    assert len(frame) <= wire.GREETING_BYTES_MAX
    refuse = wire.decode_greeting(only_frame(frame))
    assert isinstance(refuse, wire.Refuse)
    assert set(refuse.reason[:-1]) == {"ä"}


# -- cutting a stream ------------------------------------------------------------------------------------------------


@given(st.lists(requests.map(encoded_request) | responses.map(encoded_response), min_size=1, max_size=6), st.data())
def test_wherever_a_stream_is_cut_it_has_the_same_frames(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    splitter = FrameSplitter(wire.FRAME_BYTES_MAX)
    found: list[Frame] = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.feed(stream[begin:end])
        complete = sum(len(frame) for frame in frames[: len(found)])
        assert splitter.is_empty is (complete == end)
        if end - complete >= wire.HEADER.size:
            assert splitter.begun_bytes == len(frames[len(found)])
        else:
            assert splitter.begun_bytes == 0
    assert contents(found) == [contents([only_frame(frame)])[0] for frame in frames]


@given(st.lists(st.sampled_from([0, 10, 5_000, 260_000, 300_000]), min_size=1, max_size=8), st.data())
def test_frames_are_the_same_when_received_in_wanted_sizes(sizes: list[int], data: st.DataObject) -> None:
    """Whether all of it comes at once, or less; of a large frame never more than to its end."""
    fields = [bytes(number % 3 * 10) for number in range(len(sizes))]
    frames = [wire.seal(wire.ADD, 0, 1, field, size) + bytes(size) for field, size in zip(fields, sizes, strict=True)]
    stream, start = b"".join(frames), 0
    ends = list(itertools.accumulate(map(len, frames)))
    splitter = FrameSplitter(wire.FRAME_BYTES_MAX)
    found: list[Frame] = []
    while start < len(stream):
        wanted = splitter.wanted_bytes
        if wanted and not splitter.is_empty:
            assert start + wanted == ends[len(found)]
        taken = data.draw(st.sampled_from([wanted or 100_000, (wanted or 100_000) // 2 + 1]))
        found += splitter.feed(stream[start : start + taken])
        start += taken
    assert [(frame.fields, len(frame.body)) for frame in found] == list(zip(fields, sizes, strict=True))


def test_large_separate_body_is_not_copied() -> None:
    """After the first one, of which nobody knew that it would be large."""
    body = bytes(300_000)
    head = wire.seal(wire.ADD, 0, 1, b"fields", len(body))
    splitter = FrameSplitter(wire.FRAME_BYTES_MAX)
    splitter.feed(head + body)
    for _ in range(2):
        assert splitter.wanted_bytes == len(head)
        assert not splitter.feed(head)
        assert splitter.wanted_bytes == len(body)
        (frame,) = splitter.feed(body)
        assert frame.body is body
    splitter.feed(wire.PING_FRAME)
    assert splitter.wanted_bytes == 0, "small ones come many at a time"


@pytest.mark.parametrize("piece_bytes", [1, 2, 23, 1000, 1 << 20])
def test_splitter_keeps_only_arrived_bytes(piece_bytes: int) -> None:
    """However small the pieces are: the objects around them must not cost more than they hold."""
    size = min(1 << 20, 10_000 * piece_bytes)
    frame = encoded_request(AddRequest(1, 7, bytes(32), 1, batch_of([bytes(size)])))
    splitter = FrameSplitter(wire.FRAME_BYTES_MAX)
    last = len(frame) - 1
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for start in range(0, last, piece_bytes):
            assert not splitter.feed(bytes(memoryview(frame)[start : min(start + piece_bytes, last)]))
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept <= len(frame) * 1.1 + 20_000
    (found,) = splitter.feed(frame[last:])
    assert found.body == frame[-len(found.body) :]


def test_splitter_keeps_no_announced_bytes() -> None:
    """A header that promises much costs what it has."""
    header = wire.seal(wire.ADD, 0, 1, bytes(60), wire.FRAME_BYTES_MAX - 1000)
    tracemalloc.start()
    try:
        splitters = [FrameSplitter(wire.FRAME_BYTES_MAX) for _ in range(100)]
        for splitter in splitters:
            assert not splitter.feed(header)
            assert splitter.begun_bytes > 1 << 24
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()


def test_a_frame_arriving_byte_by_byte_costs_linear_time() -> None:
    """Not the square of it: fields of a mebibyte, as an answer may have."""
    frame = encoded_response(Response(1, Status.OK, detail="x" * (300 << 10)))
    splitter = FrameSplitter(wire.FRAME_BYTES_MAX)
    begin = time.process_time()
    found = [each for place in range(len(frame)) for each in splitter.feed(frame[place : place + 1])]
    assert len(found) == 1
    assert time.process_time() - begin < 3.0  # it takes 0.2 s; the square would take six


@pytest.mark.parametrize(
    ("size", "fields_bytes"),
    [(23, 0), (0, 0), (24, 1), (wire.FRAME_BYTES_MAX + 1, 0), ((1 << 32) - 1, 0), (1 << 22, (1 << 20) + 1), (100, 77)],
)
def test_impossible_sizes_are_refused_at_once(size: int, fields_bytes: int) -> None:
    header = wire.HEADER.pack(0, size, fields_bytes, wire.ADD, 0, 0, 1)
    with pytest.raises(RemoteProtocolError, match="bytes of fields"):
        FrameSplitter(wire.FRAME_BYTES_MAX).feed(header)


# -- damage -----------------------------------------------------------------------------------------------------------


def test_every_flipped_bit_of_a_header_and_of_fields_is_found() -> None:
    filler = bytes(wire.FIELDS_BYTES_MAX + 100)  # what follows: a size that became larger is found when that has come
    batch = batch_of([b"payload"])
    for data in (
        encoded_request(FenceRequest(1, 7, bytes(range(32)), 3)),
        encoded_request(AddRequest(1, 7, bytes(range(32)), 3, batch)),
        encoded_response(Response(1, Status.OK, 5, 6, (batch,), "detail")),
        wire.PING_FRAME,
        wire.encode_greeting(wire.Hello(1, 1, 0, bytes(range(32)), "bookie", "none", "replog")),
    ):
        guarded = wire.HEADER.size + int.from_bytes(data[8:12], "little")
        for bit in range(8 * guarded):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(RemoteProtocolError):
                FrameSplitter(wire.FRAME_BYTES_MAX).feed(bytes(flipped) + filler)


@pytest.mark.parametrize("digest_type", DigestType)
def test_every_flipped_bit_of_a_batch_is_found(digest_type: DigestType) -> None:
    """By the wire if the bookie can't check the batch itself, else by the batch's own code."""
    digest = Digest(digest_type, 7, PASSWORD)
    batch = batch_of([b"payload", b""], digest_type)
    data = encoded_request(AddRequest(1, 7, bytes(32), 3, batch))
    for bit in range(8 * (len(data) - len(batch.data)), 8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        frame = only_frame(bytes(flipped))
        try:
            found = wire.decode_request(frame)
        except RemoteProtocolError:
            continue
        assert isinstance(found, AddRequest)
        assert digest_type is DigestType.CRC32C, "the bookie would take it"
        assert not found.batch.verify(digest)


def decode_anything(frame: Frame) -> None:
    for decoder in (wire.decode_request, wire.decode_response, wire.decode_greeting):
        with contextlib.suppress(RemoteProtocolError):
            decoder(frame)


@given(st.lists(st.binary(max_size=100), max_size=10))
@example([b"\0" * 24])
@example([b"\xff" * 24])
def test_any_bytes_are_frames_or_a_protocol_error(pieces: list[bytes]) -> None:
    splitter = FrameSplitter(wire.FRAME_BYTES_MAX)
    with contextlib.suppress(RemoteProtocolError):
        for piece in pieces:
            for frame in splitter.feed(piece):
                decode_anything(frame)


frames = st.builds(
    Frame,
    st.sampled_from([*range(9), *range(15, 24), 32, 255]),
    st.integers(0, 255),
    request_ids,
    st.binary(max_size=150),
    st.binary(max_size=150) | some_batches.map(lambda batch: batch.data),
)


@examples(5)
@given(frames)
def test_any_frame_is_a_message_or_a_protocol_error(frame: Frame) -> None:
    decode_anything(frame)


@pytest.mark.sized
def test_damaged_messages_are_messages_or_protocol_errors(is_long: bool) -> None:
    """A small fuzz: what is whole but for some bytes gets further than what is random; its checksum is made right."""
    chance = random.Random(4)
    batch = batch_of([b"payload", b"", b"x" * 50], DigestType.HMAC_SHA256)
    seeds = [
        encoded_request(AddRequest(1, 7, bytes(32), 3, batch)),
        encoded_request(ReadRequest(1, 7, bytes(32), 3, 4, 5)),
        encoded_request(AdminRequest(1, AdminCommand.SCRUB)),
        encoded_response(Response(1, Status.OK, 5, 6, (batch, batch), "detail")),
        wire.encode_greeting(wire.Hello(1, 1, 0, bytes(32), "bookie", "none", "replog")),
        wire.encode_greeting(wire.Welcome(1, 0, bytes(32), "bookie", b"challenge", "replog")),
        wire.encode_greeting(wire.Ready(b"proof", "me", 1 << 20, 1000)),
    ]
    decoded = 0
    while decoded < (20_000 if is_long else 2_000):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(12, len(data))
            data[place : place + chance.randint(0, 2)] = chance.choice([b"", b"\0", b"\xff\xff", chance.randbytes(2)])
        fields_bytes = int.from_bytes(data[8:12], "little")
        if len(data) < wire.HEADER.size + fields_bytes:
            continue
        kind, flags, _, request_id = struct.unpack_from("<BBHQ", data, 12)
        fields = bytes(data[wire.HEADER.size : wire.HEADER.size + fields_bytes])
        body = bytes(data[wire.HEADER.size + fields_bytes :])
        (frame,) = FrameSplitter(wire.FRAME_BYTES_MAX).feed(
            wire.seal(kind, flags, request_id, fields, len(body)) + body
        )
        decode_anything(frame)
        decoded += 1


def test_every_kind_of_message_has_its_own_number() -> None:
    kinds = [
        only_frame(encoded_request(request)).kind
        for request in (
            AddRequest(1, 7, bytes(32), 1, batch_of([b""])),
            FenceRequest(1, 7, bytes(32), 1),
            RecoveryReadRequest(1, 7, bytes(32), 1, 2, 3),
            ReadRequest(1, 7, bytes(32), 1, 2, 3),
            ReadLastAddConfirmedRequest(1, 7, bytes(32), 1, 2),
            WriteLastAddConfirmedRequest(1, 7, bytes(32), 1, b"proof"),
            AdminRequest(1, AdminCommand.STATISTICS),
            CopyRequest(1, 7, b"", 1, batch_of([b""]), recovery=True, stored_key=bytes(32)),
            CopyReadRequest(1, 7, b"", 1, 2, 3),
            RangesRequest(1, 7, b"", 1, 2, 3),
            MetastoreRequest(1, MetastorePurpose.CLIENT, b"question"),
        )
    ]
    assert len(set(kinds)) == len(kinds) == len(Request.__args__)


def test_an_admin_command_of_a_later_version_is_unknown() -> None:
    (frame,) = FrameSplitter(1 << 20).feed(wire.seal(wire.ADMIN, 0, 7, (99).to_bytes(4, "little")))
    assert wire.decode_request(frame) == AdminRequest(7, AdminCommand.UNKNOWN)


# -- older and newer versions --------------------------------------------------------------------------------------


def test_question_without_batches_matches_older_versions() -> None:
    """A version without batches along with a last add confirmed sends no such fields, and skips them."""
    plain = only_frame(encoded_request(ReadLastAddConfirmedRequest(1, 7, bytes(32), 1, 2)))
    more = only_frame(encoded_request(ReadLastAddConfirmedRequest(1, 7, bytes(32), 1, 2, 3, 4, 5)))
    assert len(more.fields) == len(plain.fields) + 24
    assert more.fields.startswith(plain.fields)
    assert wire.decode_request(plain) == ReadLastAddConfirmedRequest(1, 7, bytes(32), 1, 2, 0, 0, 0)
    cut = only_frame(wire.seal(wire.READ_LAST_ADD_CONFIRMED, 0, 1, more.fields[:-1]))
    assert wire.decode_request(cut) == ReadLastAddConfirmedRequest(1, 7, bytes(32), 1, 2)
