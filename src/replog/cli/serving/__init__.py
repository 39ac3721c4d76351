"""`replog bookie`: a bookie as a process. What it is told, what it does, and what it says meanwhile."""
