"""The seams: what a storage, a transport, an authenticator, a metastore, a placement policy, a place for back-ups and an archive
promise.

Each seam is small, and `replog.testing` has a conformance suite for each: an implementation that passes
`check_storage`, `check_metastore` or `check_transport` may be trusted with a log. When in doubt, an implementation
raises; it returns nothing only for proven absence.
"""

from replog.abc.archive import Archive, StoredObject
from replog.abc.authentication import Authenticator, Identity, Peer, Role
from replog.abc.backup import BackupPlace, ReadFile, WrittenFile
from replog.abc.metastore import Metastore, MetastoreOverTransports, ValuesPage
from replog.abc.placement import BookieState, Candidate, PlacementPolicy, Random
from replog.abc.storage import UNBOUNDED, Damage, Doubt, Sighting, Storage, StoredRange
from replog.abc.transport import Connection, Reply, RequestHandler, ResponseReceiver, Transport
from replog.protocol.mutations import DropEntries, DropLedger, Marks, Mutation, PutBatch, SetMarks
from replog.protocol.proofs import better_proof
from replog.runtime.keys import Versioned, check_key, check_value
from replog.runtime.nursery import open_service_nursery

__all__ = [
    "UNBOUNDED",
    "Archive",
    "Authenticator",
    "BackupPlace",
    "BookieState",
    "Candidate",
    "Connection",
    "Damage",
    "Doubt",
    "DropEntries",
    "DropLedger",
    "Identity",
    "Marks",
    "Metastore",
    "MetastoreOverTransports",
    "Mutation",
    "Peer",
    "PlacementPolicy",
    "PutBatch",
    "Random",
    "ReadFile",
    "Reply",
    "RequestHandler",
    "ResponseReceiver",
    "Role",
    "SetMarks",
    "Sighting",
    "Storage",
    "StoredObject",
    "StoredRange",
    "Transport",
    "ValuesPage",
    "Versioned",
    "WrittenFile",
    "better_proof",
    "check_key",
    "check_value",
    "open_service_nursery",
]
