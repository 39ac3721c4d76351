"""`replog demo`: a replicated log survives a killed leader, a killed bookie and a leader that was stopped, in front of one's
eyes.

Nothing here is put on: bookies, leaders and a follower are processes of their own, killed and stopped by signals with entries
in flight; the verdict reads everything back through a fresh client and compares it with the input.
"""
