"""Which logs of a back-up belong together: a machine's snapshots say that all up to a position was applied, and the
machine's log goes on behind it (V1). They are *joined* if the newest snapshot that is whole lies inside the saved part
of the log: then a member restored from both has lost no saved entry, and applies none twice.

Everything here reads files: it is called in worker threads.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from replog.backup.content import Backup
from replog.backup.format import LogInBackup, Manifest
from replog.log.snapshot_format import POSITION_KEY, SnapshotReader, machine_name, snapshots_name
from replog.protocol.envelope import Enveloped
from replog.protocol.model import Position


@attrs.frozen
class Snapshots:
    """The snapshots of a machine in a back-up. `position` is that of the newest one that is whole."""

    position: Position | None
    are_of_machine: bool  # False of a log that only has such a name


def read_snapshots(backup: Backup, log: LogInBackup) -> Snapshots:
    """Reads all of this saved log. Raises `BackupDamagedError`."""
    found, are_of_machine = SnapshotReader(keeps_data=False), False
    for segment in log.segments:
        with backup.opened(segment) as ledger:
            are_of_machine |= POSITION_KEY in ledger.head.custom
            for block in ledger.blocks():
                for payload in block.payloads:
                    if payload.__class__ is not Enveloped:  # no snapshot has keys or headers
                        found.add(payload)
            backup.check_read(segment, ledger)
    return Snapshots(found.position, are_of_machine)


def gap(name: str, commands: LogInBackup, snapshots: Snapshots) -> str | None:
    """Why this machine's log, and these snapshots of it, are not joined; None if they are."""
    if not snapshots.are_of_machine:
        return None
    position = snapshots.position
    begins = f"log {name!r} begins with segment {commands.first_segment_number}"
    if position is None:
        if commands.has_beginning:
            return None
        return f"{begins}: what was before it was trimmed, and no snapshot in log {snapshots_name(name)!r} is whole"
    newest = f"the newest snapshot in log {snapshots_name(name)!r} has all up to {position}"
    if (commands.trimmed_to or Position(commands.first_segment_number, 0)) > behind(position):
        return f"{begins}, and {newest}: what was between them is missing"
    if commands.last_segment_number < position.segment:
        return f"log {name!r} ends with segment {commands.last_segment_number}, and {newest}"
    return None


def behind(position: Position) -> Position:
    """Where the next entry of the same segment is."""
    return Position(position.segment, position.entry + 1)


def with_partners(names: list[str], manifest: Manifest) -> list[str]:
    """These logs and those that belong to them, a machine's log before its snapshots: a member that starts in between finds no
    beginning, instead of making one."""
    wanted = set(names)
    for name in names:
        machine = machine_name(name)
        wanted |= {each for each in (machine, snapshots_name(machine)) if each in manifest.logs}
    return sorted(wanted, key=lambda name: (machine_name(name), len(name)))


def gaps(backup: Backup, manifest: Manifest, without: set[str]) -> Iterator[str]:
    """The gaps in a back-up, except in these logs, whose files are damaged."""
    for name, log in sorted(manifest.logs.items()):
        machine = machine_name(name)
        if machine == name or {machine, name} & without:
            continue
        snapshots = read_snapshots(backup, log)
        commands = manifest.logs.get(machine)
        problem = None
        if commands is not None:
            problem = gap(machine, commands, snapshots)
        elif snapshots.are_of_machine:
            problem = f"log {machine!r} is not in it, and its snapshots in log {name!r} are"
        if problem is not None:
            yield problem
