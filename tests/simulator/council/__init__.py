"""A simulator of the metastore's members: seeded schedules of messages, disks, crashes, changes of members and calls."""
