"""`replog inspect`: looking into a storage's directory, read-only, while its bookie runs or not."""
