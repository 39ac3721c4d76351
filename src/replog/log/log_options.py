"""How a log is written: `LogOptions`, what it keeps: `Retention`, and what it keeps elsewhere: `Archiving`. Invalid values are
refused where the options are made."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import attrs

from replog.client.ledgers import check_compression, check_creation
from replog.config import check_number, check_types
from replog.config.client import LEDGER_KINDS
from replog.errors import ConfigError
from replog.log.checking import check_leader_custom
from replog.protocol.digest import DigestType
from replog.protocol.quorum import Quorum


@attrs.frozen(kw_only=True)
class Retention:
    """The limits of a log's content: entries younger than `age`; the newest `size_bytes` of payload; with `committed`,
    entries that a cursor has not committed. Entries outside all limits may be dropped. Raises `ConfigError` if none is
    given, or one is impossible."""

    age: timedelta | None = None
    size_bytes: int | None = None
    committed: bool = False

    def __attrs_post_init__(self) -> None:
        if self.age is not None and (not isinstance(self.age, timedelta) or self.age < timedelta(0)):
            raise ConfigError(f"age={self.age!r} must be a timedelta, and not negative; nothing was dropped")
        if self.size_bytes is not None:
            check_number("size_bytes", self.size_bytes, 0)
        if self.age is None and self.size_bytes is None and not self.committed:
            raise ConfigError(
                "nothing says what to keep: give age=, size_bytes= or committed=True; nothing was dropped"
            )


@attrs.frozen
class Archiving:
    """Archiving by a log's leader, into the archive at this URL: of closed segments that ended longer ago than `after`, or behind
    which there are `after_bytes` of payload. Raises `ConfigError` if neither is given, or one is impossible."""

    url: str
    after: timedelta | None = attrs.field(default=None, kw_only=True)
    after_bytes: int | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        check_types("Archiving", url=(self.url, str))
        if self.after is None and self.after_bytes is None:
            raise ConfigError("nothing says what to archive: give after= or after_bytes=; nothing was archived")
        if self.after is not None and (not isinstance(self.after, timedelta) or self.after < timedelta(0)):
            raise ConfigError(f"after={self.after!r} must be a timedelta, and not negative; nothing was archived")
        if self.after_bytes is not None:
            check_number("after_bytes", self.after_bytes, 0)

    @property
    def kept(self) -> Retention:
        """The limits within which segments stay with bookies."""
        return Retention(age=self.after, size_bytes=self.after_bytes)


@attrs.frozen(kw_only=True)
class LogOptions:
    """How a log is written. All but `ledgers`, `retention` and `archive` concern the ledgers that this writer creates; None takes
    what the client's options say.

    - `quorum`: on how many bookies entries are stored.
    - `password`: bytes; without it a client can neither read, write nor fence them.
    - `digest`: the code of each batch, which finds damage, or forgeries as well.
    - `custom`: texts that become part of their metadata; the names `job` and `condemned` are reserved.
    - `durability`: with "write-quorum" they have all their copies before a close, roll or takeover behind them ends
      (W8).
    - `ledgers`: with "unbounded" takeovers go on with the log's last ledger, if that is unbounded, as those are that
      the log gets from now on (L9); with "bounded" each leader has ledgers of its own.
    - `retention`: the writer drops other entries every minute; obstacles are logged.
    - `archive`: the writer moves older segments into this archive, every minute; failures are logged.
    - `compression`: with "zstd" batches are stored compressed where that saves an eighth; readers need `replog[zstd]`,
      too. "none" never compresses.

    Raises `ConfigError` if no log can be written with these."""

    quorum: Quorum | None = None
    password: bytes = attrs.field(default=b"", repr=False)
    digest: DigestType = DigestType.CRC32C
    custom: Mapping[str, str] | None = None
    durability: str | None = None
    ledgers: str | None = None
    retention: Retention | None = None
    archive: Archiving | None = None
    compression: str | None = None

    def __attrs_post_init__(self) -> None:
        check_types("LogOptions", retention=(self.retention, Retention), archive=(self.archive, Archiving))
        if self.ledgers not in (None, *LEDGER_KINDS):
            raise ConfigError(
                f"ledgers={self.ledgers!r}: the ledgers of a log are {' or '.join(map(repr, LEDGER_KINDS))}"
            )
        quorum = Quorum() if self.quorum is None else self.quorum
        check_creation(quorum, self.password, self.digest, self.custom, self.durability)
        check_compression(self.compression)
        check_leader_custom(self.custom)


def with_given(options: LogOptions, quorum: Quorum | None, password: bytes, default: Quorum) -> LogOptions:
    """The options, with a quorum and a password that were given beside them in place of theirs, and this quorum if neither has
    one. Raises `ConfigError`."""
    return attrs.evolve(
        options,
        quorum=quorum or options.quorum or default,
        password=options.password if password == b"" else password,
    )
