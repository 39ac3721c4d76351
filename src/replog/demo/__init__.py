"""`replog demo`: a replicated log survives a killed leader, and a deposed one, in front of one's eyes.

Nothing here is put on: the leaders of act one are processes of their own, killed by SIGKILL with entries in flight; the
verdict reads everything back through a fresh client and compares it with the input.
"""
