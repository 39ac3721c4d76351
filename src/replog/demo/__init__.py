"""`replog demo`: a log survives a killed leader, a killed bookie and a stopped leader, while you watch.

Bookies, leaders and a follower are processes of their own, which are killed and stopped by signals while entries are in flight.
Each leader and the follower write down what they do and see (`replog.testing.History`); in the end the log is read back through
a fresh client, and `replog.testing.check_history` says whether it may look so.
"""
