"""Brings all fixed entries of a ledger to their full write quorum, before a close, roll or takeover ends (W8).

The filling machine does it, as in repairs: it asks bookies for their holdings, and copies the missing entries. At first
no bookie is replaced: one that is slow, or restarts, gets its missing entries. A bookie that still cannot be asked, or
takes nothing, after the time limit of an add is replaced by another one, if there is one.
"""

from __future__ import annotations

import attrs
import trio

from replog.client.ledger_effects import ClientContext
from replog.config.client import ClientTuning
from replog.errors import LedgerNotFoundError, MetastoreError, WriteQuorumError
from replog.protocol.digest import Digest
from replog.protocol.filling import Filled, Lack, LedgerFilling
from replog.protocol.fragment_copies import FixedFragment, fixed_fragments
from replog.protocol.model import LedgerMetadata
from replog.repair.auditor import Auditor, Bookies
from replog.repair.bookie_questions import BookieQuestions
from replog.repair.filler import FragmentFiller
from replog.repair.progress import RepairCounts
from replog.repair.relocation import Relocation
from replog.runtime.loggers import logger
from replog.runtime.nursery import for_each

_log = logger("replog.client")

_PAUSE_S = 0.05  # before bookies are asked again; twice as long each time
_PAUSE_MAX_S = 1.0


@attrs.define
class _Progress:
    """How far one completion is. `todo` are the first entries of the fragments that are not known to be full; `lacking` says by
    these which bookies lack what."""

    metadata: LedgerMetadata
    version: int
    todo: set[int]
    began_s: float
    lacking: dict[int, dict[str, str]] = attrs.field(factory=dict)
    problem: MetastoreError | None = None

    def filled(self, first_entry_id: int, result: Filled) -> None:
        """A filling of this fragment has ended with this result."""
        short = {each.bookie_id: _shown(each, result) for each in result.lacking}
        if result.is_overtaken:
            self.lacking[first_entry_id] = short or {"the record": "others keep changing it"}
        elif short and (result.refusals or any(each.entries != each.nowhere for each in result.lacking)):
            self.lacking[first_entry_id] = short
        else:
            # Entries that no bookie has any more are lost: the audit names them, and the completion does not wait for
            # them (F1).
            self.todo.discard(first_entry_id)
            self.lacking.pop(first_entry_id, None)
            for bookie_id, entries in short.items():
                _log.warning(
                    "ledger %d: no copy is left for bookie %s: %s", self.metadata.ledger_id, bookie_id, entries
                )


class LedgerCompletion:
    """Of one ledger, by a client that knows its password."""

    def __init__(self, key: bytes, digest: Digest, context: ClientContext, options: ClientTuning) -> None:
        questions = BookieQuestions(context.connections, options.read_timeout_s, key)
        self._digest = digest
        self._context = context
        self._options = options
        self._auditor = Auditor(context, options)
        self._relocation = Relocation(context)
        self._filler = FragmentFiller(context, questions, options, RepairCounts())

    async def complete(self, metadata: LedgerMetadata, version: int) -> LedgerMetadata:
        """Returns the record, as far as it is known, once each fragment that is fixed in this one has all its copies,
        as bookies say. Fragments that the record calls full are not checked. A ledger that was deleted meanwhile lacks
        nothing.

        Raises `WriteQuorumError` at the deadline. If it raises or is cancelled, the copies made so far stay."""
        progress = _Progress(metadata, version, _todo(metadata), trio.current_time())
        is_done = False
        with trio.move_on_after(self._options.write_quorum_timeout_s):
            try:
                await self._load(progress)
                await self._fill_until_full(progress)
            except LedgerNotFoundError:
                pass
            is_done = True
        if not is_done:
            raise self._error(metadata, progress)
        return progress.metadata

    async def _load(self, progress: _Progress) -> None:
        """Loads the fragments in chunks that are not known to be full (M4): few, unless many closes have failed."""
        while any(chunk.last_entry_id >= progress.metadata.full_before for chunk in progress.metadata.chunks):
            try:
                await self._reread(progress)
                progress.todo = _todo(progress.metadata)
                return
            except MetastoreError as error:
                progress.problem = error
                await trio.sleep(_PAUSE_MAX_S)

    async def _reread(self, progress: _Progress) -> None:
        ledger_id, since = progress.metadata.ledger_id, progress.metadata.full_before
        progress.metadata, progress.version = await self._context.records.get_head(ledger_id, since=since)

    async def _fill_until_full(self, progress: _Progress) -> None:
        # The first round needs nothing from the metastore: in most closes nothing lacks.
        bookies, pause_s = Bookies(frozenset(), frozenset(), frozenset()), _PAUSE_S
        while progress.todo:
            try:
                await self._fill(progress, bookies)
                if not progress.todo:
                    return
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
                bookies = await self._auditor.bookies()
                await self._reread(progress)
                progress.problem = None
            except MetastoreError as error:
                progress.problem = error
                await trio.sleep(_PAUSE_MAX_S)

    async def _fill(self, progress: _Progress, bookies: Bookies) -> None:
        """Fills the missing copies once. Permanently gone or draining bookies are replaced, and in the end absent ones."""
        metadata, version = progress.metadata, progress.version
        is_patient = trio.current_time() < progress.began_s + self._options.add_timeout_s
        refused = frozenset(each for lacking in progress.lacking.values() for each in lacking)

        async def fill(fragment: FixedFragment) -> None:
            replaced = () if is_patient else refused.intersection(fragment.ensemble)
            without = attrs.evolve(bookies, announced=bookies.announced.difference(replaced))
            machine = LedgerFilling(
                metadata,
                version,
                self._context.entropy.token(),
                fragment.place,
                replacements=await self._relocation.without(metadata, fragment, without, replaced),
                lost=bookies.lost,
                digest=self._digest,
            )
            progress.filled(fragment.first_entry_id, await self._filler.run(machine))
            # Fillings of other fragments change the record at the same time: the newest one counts.
            if machine.version > progress.version:
                progress.metadata, progress.version = machine.metadata, machine.version

        left = [each for each in fixed_fragments(metadata) if each.first_entry_id in progress.todo]
        # What was trimmed or archived meanwhile lacks nothing. What is in a chunk is filled once it is loaded.
        progress.todo.intersection_update([each for each in progress.todo if each >= metadata.trim_to])
        progress.todo.difference_update(each.first_entry_id for each in metadata.fragments if each.archive)
        await for_each(fill, left, self._options.repair_fragments_at_once)

    def _error(self, metadata: LedgerMetadata, progress: _Progress) -> WriteQuorumError:
        lacking = {bookie_id: what for each in progress.lacking.values() for bookie_id, what in each.items()}
        last = metadata.last_entry_id
        if last is None:
            done = f"the entries before {metadata.last_fragment.first_entry_id} stay, and the next roll or takeover waits again"
        else:
            done = f"it is closed behind entry {last}, permanently, and recover_ledger waits again"
        words = "; ".join(f"{bookie_id}: {what}" for bookie_id, what in sorted(lacking.items()))
        problem = f"after {self._options.write_quorum_timeout_s:g} s not all copies are where they must be (W8)"
        error = WriteQuorumError(
            metadata.ledger_id, f"{problem}: {words or 'asking and copying have not ended'}; {done}", lacking, last
        )
        error.__cause__ = progress.problem
        return error


def _todo(metadata: LedgerMetadata) -> set[int]:
    return {each.first_entry_id for each in fixed_fragments(metadata) if each.last_entry_id >= metadata.full_before}


def _shown(lack: Lack, result: Filled) -> str:
    ranges = ", ".join(f"{first} to {last}" for first, last in lack.entries[:3])
    more = ", ..." if len(lack.entries) > 3 else ""
    problem = result.refusals.get(lack.bookie_id) or "; ".join(result.unread.values())
    return f"lacks entries {ranges}{more}" + (f" ({problem})" if problem else "")
