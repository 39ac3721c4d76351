"""The formats, byte for byte, against what Apache's own classes make (`java/Golden.java`)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import attrs
import java_bookies
import pytest
from golden import PATH, golden, golden_bytes

from replog.errors import MetastoreCorruptError, RemoteProtocolError, UnauthorizedError
from replog.protocol import batch as batches
from replog.protocol.messages import (
    AddRequest,
    FenceRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.model import LedgerState
from replog.protocol.proofs import prove
from replog.protocol.quorum import Quorum
from replog_bookkeeper import frames, frames_v2, metadata
from replog_bookkeeper.bookies import Bookie, decode_bookie
from replog_bookkeeper.command import as_json
from replog_bookkeeper.digests import LedgerDigest, LedgerKey, process_digest
from replog_bookkeeper.exchanges import (
    Adding,
    AskingConfirmed,
    Exchange,
    Fencing,
    Publishing,
    ReadAhead,
    Reading,
    add_question,
)
from replog_bookkeeper.frames import HIGH_PRIORITY, RECOVERY_ADD, Code, Operation, ReadFlag
from replog_bookkeeper.layouts import Layout, decode_layout, ledger_key
from replog_bookkeeper.schema import wire

LEDGER, ENTRY, CONFIRMED, LENGTH = 0x123456789A, 7, 5, 1000
DIGESTS = pytest.mark.parametrize("digest", LedgerDigest)
KEY = LedgerKey(b"secret", LedgerDigest.CRC32C, Quorum(3, 3, 2))
TRANSACTION = 300
PAYLOAD, PASSWORD = b"payload", b"secret"


def batch_of(payload: bytes, confirmed: int = CONFIRMED) -> batches.Batch:
    return batches.build(
        process_digest(LEDGER),
        ledger_id=LEDGER,
        first_entry_id=ENTRY,
        stride=1,
        payloads=(payload,),
        last_add_confirmed=confirmed,
        stamp=1,
        timestamp_ns=0,
        cumulative_length=LENGTH,
    )


@pytest.mark.needs_bookkeeper
@pytest.mark.long(is_sampled=False)
def test_golden_bytes_are_those_of_java(shared_cluster: java_bookies.Cluster) -> None:
    assert shared_cluster.java.run("Golden") == PATH.read_text()


# -- keys and entries ---------------------------------------------------------------------------------------------


def test_keys_are_javas() -> None:
    assert LedgerKey(b"", LedgerDigest.CRC32, Quorum()) == golden_bytes("key-empty")
    assert golden_bytes("key-secret") == KEY


@DIGESTS
def test_entry_is_sealed_and_opened_as_java_does(digest: LedgerDigest) -> None:
    key, expected = LedgerKey(b"secret", digest, Quorum(3, 3, 2)), golden_bytes(f"entry-{digest.name}")
    assert key.seal_entry(batch_of(b"payload"), CONFIRMED) == expected
    found = key.open_entry(expected, LEDGER, ENTRY)
    assert (found.payloads(), found.last_add_confirmed, found.cumulative_length) == ([b"payload"], CONFIRMED, LENGTH)
    assert found.verify(process_digest(LEDGER))


@DIGESTS
def test_confirmed_is_sealed_and_opened_as_java_does(digest: LedgerDigest) -> None:
    key, expected = LedgerKey(b"secret", digest, Quorum(3, 3, 2)), golden_bytes(f"confirmed-{digest.name}")
    assert key.seal_confirmed(LEDGER, CONFIRMED) == expected
    assert key.open_confirmed(expected, LEDGER) == CONFIRMED


@pytest.mark.parametrize("digest", [each for each in LedgerDigest if each is not LedgerDigest.DUMMY])
def test_every_flipped_bit_of_an_entry_is_doubt(digest: LedgerDigest) -> None:
    key, good = LedgerKey(b"secret", digest, Quorum(3, 3, 2)), golden_bytes(f"entry-{digest.name}")
    for place in range(8 * len(good)):
        bad = bytearray(good)
        bad[place // 8] ^= 1 << place % 8
        with pytest.raises(RemoteProtocolError):
            key.open_entry(bytes(bad), LEDGER, None)


def test_another_entry_is_doubt_under_any_digest() -> None:
    for digest in LedgerDigest:
        key = LedgerKey(b"secret", digest, Quorum(3, 3, 2))
        body = golden_bytes(f"entry-{digest.name}")
        for ledger_id, entry_id in ((LEDGER, ENTRY + 1), (LEDGER + 1, ENTRY)):
            with pytest.raises(RemoteProtocolError):
                key.open_entry(body, ledger_id, entry_id)
        with pytest.raises(RemoteProtocolError):
            key.open_confirmed(golden_bytes(f"confirmed-{digest.name}"), LEDGER + 1)


def test_copy_by_javas_repair_is_legal() -> None:
    """Its header says that more is confirmed than the entries before it."""
    key = LedgerKey(b"", LedgerDigest.CRC32C, Quorum(3, 3, 2))
    found = key.open_entry(key.seal_entry(batch_of(b"x"), ENTRY + 90), LEDGER, ENTRY)
    assert found.last_add_confirmed == ENTRY - 1


# -- frames -------------------------------------------------------------------------------------------------------


def asked(exchange: Exchange) -> bytes:
    ((operation, body, priority),) = exchange.questions()
    return frames.request(operation, TRANSACTION, body, priority=priority)


def test_requests_have_the_bytes_of_java() -> None:
    made = {
        "request-read": asked(Reading(ReadRequest(1, LEDGER, KEY, ENTRY, 1, 0), ReadAhead())),
        "request-fence": asked(Fencing(FenceRequest(1, LEDGER, KEY, 2))),
        "request-poll": asked(AskingConfirmed(ReadLastAddConfirmedRequest(1, LEDGER, KEY, 4, 1000))),
        "request-read-lac": asked(AskingConfirmed(ReadLastAddConfirmedRequest(1, LEDGER, KEY, 4, 0))),
        "request-start-tls": frames.request(Operation.START_TLS, TRANSACTION, wire["StartTLSRequest"]()),
    }
    for name, frame in made.items():
        expected = golden_bytes(name)
        assert frame == len(expected).to_bytes(4, "big") + expected, name


def test_add_of_a_recovery_has_the_bytes_of_java() -> None:
    """R5: with the last add confirmed with which the recovery began, a flag and a priority."""
    proof = prove(process_digest(LEDGER), LEDGER, 1, 3)
    operation, message, priority = add_question(AddRequest(1, LEDGER, KEY, 2, batch_of(b"payload"), True, proof))
    frame = frames.request(operation, TRANSACTION, message, priority=priority)
    found, expected = (
        wire["Request"].FromString(frame[4:]),
        wire["Request"].FromString(golden_bytes("request-add-recovery")),
    )
    assert found.addRequest.body == KEY.seal_entry(batch_of(b"payload"), 3)
    expected.addRequest.body = found.addRequest.body
    assert found == expected


def question(operation: Operation, message: Any) -> frames.Question:
    """A request of the transaction of Java's answers, as a bookie gets it."""
    return frames.Question(frames.request(operation, TRANSACTION, message)[4:])


def test_answers_of_a_bookie_have_the_bytes_of_java() -> None:
    add = wire["AddRequest"](ledgerId=LEDGER, entryId=ENTRY, masterKey=bytes(KEY), body=b"")
    for code in frames.Code:
        found = question(Operation.ADD_ENTRY, add).answer(code, ledgerId=LEDGER, entryId=ENTRY)
        made = [golden_bytes(name) for name in golden() if name.startswith("answer-add-")]
        assert found[4:] in made, code
    asked = question(Operation.READ_ENTRY, wire["ReadRequest"](ledgerId=LEDGER, entryId=ENTRY))
    fields = {"ledgerId": LEDGER, "entryId": ENTRY, "body": PAYLOAD, "maxLAC": 9, "lacUpdateTimestamp": 1}
    assert asked.answer(Code.OK, **fields)[4:] == golden_bytes("answer-read")
    asked = question(Operation.READ_CONFIRMED, wire["ReadLacRequest"](ledgerId=LEDGER))
    fields = {"ledgerId": LEDGER, "lacBody": PAYLOAD, "lastEntryBody": PASSWORD}
    assert asked.answer(Code.OK, **fields)[4:] == golden_bytes("answer-read-lac")


def test_frames_of_version_2_have_the_bytes_of_java() -> None:
    """Both ends: requests as this client makes them and a bookie reads them, and answers the other way."""
    add = {"ledgerId": LEDGER, "entryId": ENTRY, "masterKey": bytes(KEY), "body": golden_bytes("entry-CRC32C")}
    read = {"ledgerId": LEDGER, "entryId": ENTRY}
    fence = read | {"masterKey": bytes(KEY), "flag": ReadFlag.FENCE_LEDGER}
    made = {
        "add": (Operation.ADD_ENTRY, wire["AddRequest"](**add), 0),
        "add-recovery": (Operation.ADD_ENTRY, wire["AddRequest"](**add, flag=RECOVERY_ADD), HIGH_PRIORITY),
        "read": (Operation.READ_ENTRY, wire["ReadRequest"](**read), 0),
        "fence": (Operation.READ_ENTRY, wire["ReadRequest"](**fence), HIGH_PRIORITY),
    }
    for name, (operation, message, priority) in made.items():
        frame = frames_v2.request(operation, message, priority=priority)
        assert frame == golden_bytes(f"version-2-{name}"), name
        found = frames_v2.Question(frame[4:])
        assert (found.operation, found.body) == (operation, message), name
        is_add = operation is Operation.ADD_ENTRY
        fields = {} if is_add else {"body": PAYLOAD}
        answer = golden_bytes(f"version-2-answer-{'add' if is_add else 'read'}")
        assert found.answer(Code.OK, **fields) == answer, name
        decoded = frames_v2.decode(answer[4:])
        assert (decoded.transaction, decoded.code) == (frames_v2.key_of(operation, message), Code.OK)
        assert is_add or decoded.body.body == PAYLOAD
        refused = golden_bytes(f"version-2-refusal-{'add' if is_add else 'read'}")
        assert found.answer(Code.FENCED) == refused
        assert frames_v2.decode(refused[4:]).code is Code.FENCED


def test_explicit_confirmed_has_the_bytes_of_java() -> None:
    proof = prove(process_digest(LEDGER), LEDGER, 1, CONFIRMED)
    found = wire["Request"].FromString(asked(Publishing(WriteLastAddConfirmedRequest(1, LEDGER, KEY, 1, proof)))[4:])
    expected = wire["Request"].FromString(golden_bytes("request-write-lac"))
    assert KEY.open_confirmed(found.writeLacRequest.body, LEDGER) == CONFIRMED
    expected.writeLacRequest.body = found.writeLacRequest.body
    assert found == expected


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("EOK", Status.OK),
        ("EFENCED", Status.FENCED),
        ("EREADONLY", Status.READ_ONLY),
        ("EUA", Status.UNAUTHORIZED),
        ("ETOOMANYREQUESTS", Status.TOO_BUSY),
        ("EIO", Status.UNKNOWN),
        ("ENOENTRY", Status.UNKNOWN),
        ("EUNKNOWNLEDGERSTATE", Status.UNKNOWN),
    ],
)
def test_codes_of_an_add_are_told_apart(code: str, status: Status) -> None:
    """W4: nothing that a bookie says to an add is a denial."""
    answer = frames.decode(golden_bytes(f"answer-add-{code}"))
    response = Adding(AddRequest(1, LEDGER, KEY, 1, batch_of(b"payload"))).answered(0, answer)
    assert isinstance(response, Response)
    assert response.status is status
    assert (response.fence_term > 1) == (status is Status.FENCED)


def test_every_code_of_java_is_known() -> None:
    names = [name.removeprefix("answer-add-") for name in golden() if name.startswith("answer-add-")]
    found = {name: frames.decode(golden_bytes(f"answer-add-{name}")).code for name in names}
    assert len(set(found.values())) == len(names) == len(Code)


def test_answers_are_read_as_java_wrote_them() -> None:
    read = frames.decode(golden_bytes("answer-read"))
    assert (read.transaction, read.code, read.body.body, read.body.maxLAC) == (TRANSACTION, Code.OK, b"payload", 9)
    confirmed = frames.decode(golden_bytes("answer-read-lac"))
    assert (confirmed.body.lacBody, confirmed.body.lastEntryBody) == (b"payload", b"secret")


# -- metadata -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("state", ["open", "recovery", "closed"])
def test_record_of_each_format_is_read(version: int, state: str) -> None:
    record = metadata.decode(LEDGER, golden_bytes(f"metadata-{version}-{state}"))
    found = record.metadata
    assert (record.format, found.quorum) == (version, Quorum(3, 2, 2))
    assert [each.first_entry_id for each in found.fragments] == [0, 5]
    assert found.fragments[1].ensemble == ("one:3181", "bookie-4", "bookie-3")
    states = {"open": LedgerState.OPEN, "recovery": LedgerState.IN_RECOVERY, "closed": LedgerState.CLOSED}
    assert found.state is states[state]
    assert found.last_entry_id == (8 if state == "closed" else None)
    assert (found.contents.size_bytes if found.contents else None) == (LENGTH if state == "closed" else None)
    if version > 1:
        assert (record.digest, record.password) == (LedgerDigest.HMAC, b"secret")
        assert found.created_at_ms == 1_700_000_000_123
        assert found.custom["application"].encode(errors="surrogateescape") == b'\xff\0"'


@pytest.mark.parametrize("version", [1, 2, 3])
def test_changed_record_keeps_its_format_and_fields(version: int) -> None:
    before = metadata.decode(LEDGER, golden_bytes(f"metadata-{version}-open"))
    closed = attrs.evolve(before.metadata, token="mine").closed_at(8)
    value = metadata.changed(before, closed, LENGTH)
    after = metadata.decode(LEDGER, value)
    assert after.metadata.token == ("mine" if version > 1 else "")
    expected = metadata.decode(LEDGER, golden_bytes(f"metadata-{version}-closed"))
    if version > 1:
        assert len(after.message.customMetadata) == 2
        del after.message.customMetadata[1:]
    else:
        assert value == golden_bytes("metadata-1-closed")
    assert after.message == expected.message


def test_command_shows_times_as_replogs_own_do() -> None:
    record = metadata.decode(LEDGER, golden_bytes("metadata-3-closed"))
    assert as_json(record)["created_at"] == "2023-11-14T22:13:20.123000Z"


def test_wrong_password_is_refused_by_the_record() -> None:
    record = metadata.decode(LEDGER, golden_bytes("metadata-3-open"))
    assert record.key(b"secret", LedgerDigest.CRC32).digest is LedgerDigest.HMAC
    with pytest.raises(UnauthorizedError):
        record.key(b"other", LedgerDigest.CRC32)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_damaged_record_is_named(version: int) -> None:
    good = golden_bytes(f"metadata-{version}-closed")
    for end in range(len(good)):
        # Lines may end anywhere, and optional fields stand at the end: what is read then is a record all the same.
        with (
            suppress(MetastoreCorruptError) if version < 3 else pytest.raises(MetastoreCorruptError, match=str(LEDGER))
        ):
            metadata.decode(LEDGER, good[:end])


# -- places -------------------------------------------------------------------------------------------------------


def test_ledgers_have_the_paths_of_java() -> None:
    for name, path in golden().items():
        kind, _, rest = name.partition("-")
        if kind == "path":
            layout, _, ledger_id = rest.rpartition("-")
            assert f"/{ledger_key(Layout(layout), int(ledger_id))}" == path


def test_layouts_are_read_as_java_wrote_them() -> None:
    names = {"Hierarchical", "LongHierarchical", "Flat", "LegacyHierarchical"}
    found = {decode_layout(golden_bytes(f"layout-{name}")).value for name in names}
    assert found == {name.lower() for name in names}
    with pytest.raises(MetastoreCorruptError):
        decode_layout(b"2\nsomething:1")


def test_registrations_of_old_and_new_bookies_are_read() -> None:
    found = decode_bookie("bookie-1", golden_bytes("service-info"), read_only=True)
    assert found == Bookie("bookie-1", "host-1:3181", True, True)
    assert decode_bookie("host-1:3181", b"", read_only=False).address == "host-1:3181"
    for bad in (b"\xff", b""):
        with pytest.raises(ValueError, match=r"bookie-1|ff"):
            decode_bookie("bookie-1", bad, read_only=False)
