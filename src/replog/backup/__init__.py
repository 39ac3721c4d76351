"""Back-ups of logs in a directory: saving closed segments while writers go on, checking, restoring with the same positions."""
