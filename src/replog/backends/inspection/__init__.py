"""The shared part of the inspections of all storages: reports, holes, locks, and listing the batches of a ledger."""
