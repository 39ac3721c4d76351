"""`replog bookie`: a bookie as a process: its configuration, its life, and its log."""
