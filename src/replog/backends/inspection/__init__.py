"""What the inspections of all storages share: reports, holes, locks, and listing the batches of a ledger."""
