"""All mutants of the source there are, by layer."""

from __future__ import annotations

from tests.mutation import (
    archives,
    backup,
    bookie,
    chunks,
    client,
    clocks,
    disks,
    faces,
    filling,
    log,
    machine,
    members,
    metrics,
    protocol,
    repairing,
    revisions,
    storages,
    stranger,
    transports,
)
from tests.mutation.table import SourceMutant

SOURCE_MUTANTS: dict[str, tuple[SourceMutant, ...]] = {
    "protocol": protocol.MUTANTS,
    "client": client.MUTANTS,
    "chunks": chunks.MUTANTS,
    "clocks": clocks.MUTANTS,
    "log": log.MUTANTS,
    "machine": machine.MUTANTS,
    "members": members.MUTANTS,
    "back-ups": backup.MUTANTS,
    "archives": archives.MUTANTS,
    "metrics": metrics.MUTANTS,
    "bookie": bookie.MUTANTS,
    "faces": faces.MUTANTS,
    "filling": filling.MUTANTS,
    "repairing": repairing.MUTANTS,
    "revisions": revisions.MUTANTS,
    "storages": storages.MUTANTS,
    "disks": disks.MUTANTS,
    "transports": transports.MUTANTS,
    "shells": stranger.MUTANTS,
}
