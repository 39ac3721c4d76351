"""The hooks of plugins, for offers and observers: pluggy hooks, with the prefix `replog_`.

A plugin is a module or object with functions marked `@hookimpl` and named as below, found through the entry point
group `replog`. The built-ins register through the same hooks. All hooks are plain functions: they return *factories*,
and are called once, when a registry is made; a coroutine function is refused. A plugin module should be cheap to
import: import a third-party package inside `open`, so that a missing one is reported with the extra to install.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs
import pluggy

from replog.errors import StorageError

if TYPE_CHECKING:
    from replog.abc import Archive, Authenticator, BackupPlace, Doubt, Metastore, PlacementPolicy, Storage, Transport

PROJECT_NAME = "replog"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)

Offered = TypeVar("Offered", covariant=True)


@attrs.frozen
class NoOptions:
    """The options of a backend that has none: every `?option=` in its URL is refused."""


@attrs.frozen
class Backend(Generic[Offered]):
    """A backend that a plugin offers under a URL scheme, for URLs `scheme:rest?option=value`.

    `open(rest, options)` is a plain function. `rest` is the URL's part between the scheme and the `?`. `options` is an
    instance of `options_class`, an attrs class whose fields are the options; unknown and ill-typed options were refused
    before. The `open` of a storage may block: it is called in a worker thread. Others must not block: a metastore connects
    at its first call. `open` raises only errors of `replog.errors`, or ImportError, which is reported with `extra`.
    `summary` is one line for people. `extra` is the extra of replog that installs the packages that `open` imports.
    """

    scheme: str
    open: Callable[[str, Any], Offered]
    options_class: type = NoOptions
    summary: str = ""
    extra: str = ""


# -- events for observers -----------------------------------------------------------------------------------------


@attrs.frozen
class EnsembleChanged:
    """A writer replaced bookies, and the metadata says so (C3): `replaced` maps an index to its old and new bookie."""

    ledger_id: int
    first_entry_id: int
    replaced: Mapping[int, tuple[str, str]]


@attrs.frozen
class LedgerRecovered:
    """A ledger was fenced and closed by this client (R2-R8); `last_entry_id` is -1 if it is empty."""

    ledger_id: int
    last_entry_id: int
    duration_s: float


@attrs.frozen
class LedgerTakenOver:
    """This client took over an unbounded ledger: it writes in this term, behind `last_entry_id` (T2)."""

    ledger_id: int
    term: int
    last_entry_id: int
    duration_s: float


@attrs.frozen
class WriterFenced:
    """A writer of this client noticed that it is deposed (L5); the outcome of `unconfirmed` is unknown (W4)."""

    ledger_id: int
    unconfirmed: range


@attrs.frozen
class LogTakenOver:
    """This client became the writer of a log (L1), and writes to this ledger. It closed the ledgers in `recovered` first."""

    log_name: str
    segment: int
    ledger_id: int
    recovered: tuple[int, ...]
    duration_s: float


@attrs.frozen
class LogRolled:
    """A log began its next ledger (L2)."""

    log_name: str
    segment: int
    ledger_id: int
    previous_ledger_id: int


@attrs.frozen
class LedgersSpliced:
    """A log's leader, in this client, added ledgers of a committer from `first_segment` on, and goes on behind them (L10)."""

    log_name: str
    first_segment: int
    ledger_ids: tuple[int, ...]
    next_ledger_id: int


@attrs.frozen
class LogTrimmed:
    """The ledgers before this segment left a log, and are being deleted (L3)."""

    log_name: str
    first_segment: int
    ledger_ids: tuple[int, ...]


@attrs.frozen
class StorageFailed:
    """The storage of a bookie in this process stopped, or has so little space that the bookie became read-only (B1, B5)."""

    bookie_id: str
    error: StorageError


@attrs.frozen
class StorageInDoubt:
    """The storage of a bookie in this process cannot vouch for ledgers with ids below the bounds in `doubt` (B8).

    It found less than it had made durable, or cannot tell. Reported at each start. The bookie takes no plain adds to these
    ledgers."""

    bookie_id: str
    doubt: Doubt


@attrs.frozen
class BookieLeftOut:
    """`embed` continued without the bookie in this directory, because its storage could not be opened (C7).

    Entries have fewer copies than they should until the disk is repaired, or replaced by an empty directory."""

    directory: str
    error: StorageError


@attrs.frozen
class MetastoreLeaderChanged:
    """The metastore that bookies keep themselves has another leader, as the member in this process knows; "": none now. Seen
    within half a second."""

    leader_address: str
    term: int


@attrs.frozen
class MetastoreMembersChanged:
    """The members of that metastore are at these addresses now. The first one tells what they are at the beginning."""

    addresses: tuple[str, ...]


@attrs.frozen
class MetastoreMemberStopped:
    """The member in this process has stopped, because its disk failed; the others go on, and one fewer may be lost (B10)."""

    address: str
    problem: str


@attrs.frozen
class BookieStartsEmpty:
    """`embed` made a new bookie in this empty directory, although known bookies are missing: those in `absent`.

    They are neither embedded here nor announced. Perhaps a disk was replaced; perhaps it is not mounted."""

    bookie_id: str
    directory: str
    absent: tuple[str, ...]


@attrs.frozen
class DamageFound:
    """A bookie in this process has a stored batch that it cannot read; it never answers that these entries are absent (R4).

    Reported once, and again after the batch was repaired or dropped meanwhile. `stamp` is the term of the entries' writer
    (T3)."""

    bookie_id: str
    ledger_id: int
    stamp: int
    first_entry_id: int
    last_entry_id: int
    description: str


@attrs.frozen
class PlacementUnmet:
    """An ensemble of this client's does not meet the wishes of its placement policy: `shortfall` says which, in words.

    If `is_refused`, the policy is strict, and a bookie that failed was not replaced; otherwise the ensemble is used."""

    ledger_id: int
    shortfall: str
    is_refused: bool


@attrs.frozen
class AuditEnded:
    """An audit by this client ended: so many fragments lack a copy, so many are not where the placement policy wants them."""

    ledgers: int
    fragments: int
    under_replicated: int
    misplaced: int
    duration_s: float


@attrs.frozen
class FragmentRepaired:
    """A repair by this client copied something to bookies of a fragment, or replaced some of these: `replaced` maps an index to
    its old and new bookie. It may still lack copies: the next audit says so. Of `unverified_batches` there was one copy left, and
    without the ledger's password only its damage check could be made."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    replaced: Mapping[int, tuple[str, str]]
    copied_bytes: int
    duration_s: float
    unverified_batches: int = 0


@attrs.frozen
class BatchConfirmed:
    """Entries that a writer of this client sent together are confirmed, on the disks of an ack quorum and with all before them
    (W2), `duration_s` after they were sent. `answered_s` says by bookie when those had acknowledged them that have by now."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    size_bytes: int
    duration_s: float
    answered_s: Mapping[str, float]


Event = (
    EnsembleChanged
    | PlacementUnmet
    | LedgerRecovered
    | LedgerTakenOver
    | WriterFenced
    | LogTakenOver
    | LogRolled
    | LedgersSpliced
    | LogTrimmed
    | StorageFailed
    | StorageInDoubt
    | BookieLeftOut
    | BookieStartsEmpty
    | MetastoreLeaderChanged
    | MetastoreMembersChanged
    | MetastoreMemberStopped
    | DamageFound
    | AuditEnded
    | FragmentRepaired
)


# -- the hooks ----------------------------------------------------------------------------------------------------


@hookspec
def replog_storages() -> Sequence[Backend[Storage]]:  # type: ignore[empty-body]
    """The storages that this plugin offers to bookies."""


@hookspec
def replog_transports() -> Sequence[Backend[Transport]]:  # type: ignore[empty-body]
    """The transports that this plugin offers."""


@hookspec
def replog_metastores() -> Sequence[Backend[Metastore]]:  # type: ignore[empty-body]
    """The metastores that this plugin offers, for URLs in `replog.connect`."""


@hookspec
def replog_placements() -> Sequence[Backend[PlacementPolicy]]:  # type: ignore[empty-body]
    """The placement policies that this plugin offers."""


@hookspec
def replog_authenticators() -> Sequence[Backend[Authenticator]]:  # type: ignore[empty-body]
    """The authenticators that this plugin offers, for the option `authentication` of clients and bookies.

    `open` may read files: it is called once for a client or a bookie, before it serves."""


@hookspec
def replog_backup_places() -> Sequence[Backend[BackupPlace]]:  # type: ignore[empty-body]
    """The places for back-ups that this plugin offers, for URLs like `s3://BUCKET/PREFIX` in `replog backup`.

    A place connects at its first call."""


@hookspec
def replog_archives() -> Sequence[Backend[Archive]]:  # type: ignore[empty-body]
    """The archives that this plugin offers, for URLs like `s3://BUCKET/PREFIX` in `replog archive add`.

    An archive connects at its first call. Its URL stands in the metastore: `open` refuses one with credentials."""


@hookspec
def replog_bookie_labels() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Labels of every bookie that this program serves: what the host knows of where it is, like `{"zone": "eu-1a"}`.

    Called in a worker thread before a bookie is announced, once for each bookie; may ask a metadata service, and must end soon.
    An exception keeps the bookie from starting: without its zone it could be given copies that belong elsewhere. The bookie's
    option `labels` comes before these."""


@hookspec
def replog_observe(event: Event) -> None:
    """Receives ensemble changes, unmet placements, recoveries, takeovers, rolls, trims, storage failures, doubt, damage,
    audits and repairs after they happened.

    Called in the trio thread; must return at once. An observer that raises is reported by a warning, and gets no more events.
    """


@hookspec
def replog_observe_batches(event: BatchConfirmed) -> None:
    """Receives each batch that a writer of this program has confirmed: thousands a second, so it is a hook of its own. Only while
    a plugin has it are they measured. Called and left out as `replog_observe`, before the callers of appends go on."""
