"""BookKeeper's record of a ledger, as bytes and as replog's `LedgerMetadata`.

Format 3 is a delimited protobuf message, 2 the same message as text, 1 lines of text. All are read, and a record keeps the format
that it has. A new one has format 3.

BookKeeper has no terms: an open ledger has term 1, that of its writer, and one in recovery term 2, which all that recover it
share. Gaps are not recorded: BookKeeper's auditor finds them. The token of a change (M1) is a custom entry, which Java's
programs keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from google.protobuf import text_format
from google.protobuf.message import DecodeError

from replog.errors import ConfigError, MetastoreCorruptError, UnauthorizedError
from replog.protocol.batch import ENTRY_ID_MAX
from replog.protocol.closed_contents import Contents
from replog.protocol.digest import DigestType
from replog.protocol.fragments import WRITER_TERM, Fragment
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.protocol.quorum import Quorum
from replog_bookkeeper.digests import LedgerDigest, LedgerKey
from replog_bookkeeper.schema import data

TOKEN = "replog.token"  # the custom entry that names the attempt which wrote this version
_MAGIC = b"BookieMetadataFormatVersion\t"
_FORMATS = (1, 2, 3)
_CLOSED, _IN_RECOVERY = "CLOSED", -102  # of format 1
_STATES = {LedgerState.OPEN: 1, LedgerState.IN_RECOVERY: 2, LedgerState.CLOSED: 3}
_STATE_OF = {number: state for state, number in _STATES.items()}
_FRAGMENTS_MAX = 100_000
_NOT_UTF8 = "surrogateescape"  # BookKeeper's custom values are bytes, replog's texts: this loses none


@attrs.frozen
class LedgerRecord:
    """A ledger's record as a version of it was read. `message` has all fields, those that replog does not know of as well."""

    metadata: LedgerMetadata
    format: int
    digest: LedgerDigest | None  # None: of a record of format 1, which does not say
    password: bytes | None
    message: Any

    def key(self, password: bytes, digest: LedgerDigest) -> LedgerKey:
        """The ledger's key, with this password; `digest` is for a record that does not name one.

        Raises `UnauthorizedError` if it is another password than the record's."""
        if self.password is not None and self.password != password:
            raise UnauthorizedError(self.metadata.ledger_id, "this is not its password: no bookie was asked")
        return LedgerKey(password, self.digest or digest, self.metadata.quorum)


def decode(ledger_id: int, value: bytes) -> LedgerRecord:
    """Reads a record of any format. Raises `MetastoreCorruptError`, and nothing else."""
    where = f"ledger {ledger_id}"
    head, newline, rest = value.partition(b"\n")
    version = head.removeprefix(_MAGIC)
    if not head.startswith(_MAGIC) or not newline or version not in (b"1", b"2", b"3"):
        problem = f"its record begins with {value[:60]!r}: formats {_FORMATS} are known"
        raise MetastoreCorruptError(f"{where}: {problem}")
    try:
        message = _READERS[int(version)](rest)
        return _record(ledger_id, int(version), message)
    except (DecodeError, text_format.ParseError, ValueError, ConfigError) as error:
        raise MetastoreCorruptError(f"{where}: its record of format {int(version)} is damaged: {error}") from error


def _record(ledger_id: int, version: int, message: Any) -> LedgerRecord:
    ack = message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize
    quorum = Quorum(message.ensembleSize, message.quorumSize, ack)
    state = _STATE_OF[message.state]
    fragments = tuple(Fragment(each.firstEntryId, tuple(each.ensembleMember)) for each in message.segment)
    firsts = [each.first_entry_id for each in fragments]
    if not fragments or firsts[0] != 0 or sorted(set(firsts)) != firsts or len(firsts) > _FRAGMENTS_MAX:
        raise ValueError(f"its fragments begin at {firsts[:10]}")
    if any(len(each.ensemble) != quorum.ensemble for each in fragments):
        raise ValueError(f"a fragment has not {quorum.ensemble} bookies")
    last = message.lastEntryId if state is LedgerState.CLOSED else None
    if last is not None and not (-1 <= last <= ENTRY_ID_MAX and message.length >= 0):
        raise ValueError(f"it ends at entry {last}, with length {message.length}")
    custom = {each.key: each.value.decode(errors=_NOT_UTF8) for each in message.customMetadata}
    token = custom.pop(TOKEN, "")
    metadata = LedgerMetadata(
        ledger_id,
        quorum,
        DigestType.CRC32C,  # of the batches in this process
        "",
        fragments,
        state=state,
        term=WRITER_TERM + (state is LedgerState.IN_RECOVERY),
        last_entry_id=last,
        token=token,
        created_at_ms=message.ctime if message.HasField("ctime") else 0,
        custom=custom,
        contents=None if last is None else Contents.of(last + 1, message.length, None, None),
    )
    digest = LedgerDigest(message.digestType) if message.HasField("digestType") else None
    password = message.password if message.HasField("password") else None
    return LedgerRecord(metadata, version, digest, password, message)


def created(
    metadata: LedgerMetadata, digest: LedgerDigest, password: bytes, custom: Mapping[str, bytes], creator_token: int
) -> bytes:
    """The bytes of the record of a new ledger, of format 3."""
    message = data["LedgerMetadataFormat"](
        quorumSize=metadata.quorum.write,
        ensembleSize=metadata.quorum.ensemble,
        ackQuorumSize=metadata.quorum.ack,
        digestType=digest.value,
        password=password,
        ctime=metadata.created_at_ms,
        cToken=creator_token,
        length=0,
        state=_STATES[LedgerState.OPEN],
    )
    for key, value in custom.items():
        message.customMetadata.add(key=key, value=value)
    return _encode(metadata, 3, message, 0)


def changed(record: LedgerRecord, metadata: LedgerMetadata, length: int) -> bytes:
    """The bytes of this record with the state, fragments and token of `metadata`; all else stays as it is. `length` is that of
    the payloads, if it is closed."""
    message = data["LedgerMetadataFormat"]()
    message.CopyFrom(record.message)
    return _encode(metadata, record.format, message, length)


def _encode(metadata: LedgerMetadata, version: int, message: Any, length: int) -> bytes:
    message.state = _STATES[metadata.state]
    message.length = 0
    message.ClearField("lastEntryId")
    if metadata.state is LedgerState.CLOSED:
        message.lastEntryId, message.length = metadata.last_entry_id, length
    del message.segment[:]
    for fragment in metadata.fragments:
        message.segment.add(ensembleMember=fragment.ensemble, firstEntryId=fragment.first_entry_id)
    kept = [(each.key, each.value) for each in message.customMetadata if each.key != TOKEN]
    del message.customMetadata[:]
    for key, value in (*kept, (TOKEN, metadata.token.encode())):
        message.customMetadata.add(key=key, value=value)
    return _MAGIC + str(version).encode() + b"\n" + _WRITERS[version](message)


# -- format 3 -----------------------------------------------------------------------------------------------------


def _read_delimited(rest: bytes) -> Any:
    size, start = 0, 0
    while True:
        if start >= min(5, len(rest)):
            raise ValueError("it is cut short")
        size |= (rest[start] & 0x7F) << 7 * start
        start += 1
        if rest[start - 1] < 0x80:
            break
    if len(rest) - start != size:
        raise ValueError(f"it has {len(rest) - start} bytes of {size}")
    return data["LedgerMetadataFormat"].FromString(rest[start:])


def _delimited(message: Any) -> bytes:
    body: bytes = message.SerializeToString()
    size, head = len(body), bytearray()
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*head, size)) + body


# -- format 2 -----------------------------------------------------------------------------------------------------


def _read_text(rest: bytes) -> Any:
    message = data["LedgerMetadataFormat"]()
    text_format.Parse(rest.decode(), message, allow_unknown_field=True)
    return message


def _text(message: Any) -> bytes:
    return str(text_format.MessageToString(message)).encode()


# -- format 1 -----------------------------------------------------------------------------------------------------


def _read_lines(rest: bytes) -> Any:
    write, ensemble, length, *lines = rest.decode().splitlines()
    message = data["LedgerMetadataFormat"](
        quorumSize=int(write), ensembleSize=int(ensemble), length=int(length), state=_STATES[LedgerState.OPEN]
    )
    for line in lines:
        first, *words = line.split("\t")
        if words == [_CLOSED]:
            is_recovered = int(first) == _IN_RECOVERY
            message.state = _STATES[LedgerState.IN_RECOVERY if is_recovered else LedgerState.CLOSED]
            if not is_recovered:
                message.lastEntryId = int(first)
        else:
            message.segment.add(ensembleMember=words, firstEntryId=int(first))
    return message


def _lines(message: Any) -> bytes:
    lines = [str(message.quorumSize), str(message.ensembleSize), str(message.length)]
    lines += ["\t".join((str(each.firstEntryId), *each.ensembleMember)) for each in message.segment]
    state = _STATE_OF[message.state]
    if state is not LedgerState.OPEN:
        last = message.lastEntryId if state is LedgerState.CLOSED else _IN_RECOVERY
        lines.append(f"{last}\t{_CLOSED}")
    return "\n".join(lines).encode()


_READERS = {1: _read_lines, 2: _read_text, 3: _read_delimited}
_WRITERS = {1: _lines, 2: _text, 3: _delimited}
