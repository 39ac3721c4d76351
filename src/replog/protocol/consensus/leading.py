"""A leader's knowledge of its followers in one term: how far each has the log, and which have answered since when.

It counts an acknowledgement for what its message compared, never for how long a log is (Q4), and only of its own term (Q7).
"""

from __future__ import annotations

import attrs

from replog.protocol.consensus.groups import Membership


@attrs.define
class Follower:
    """One member, or a learner that is not one yet, as its leader knows it."""

    next: int  # the first entry that is sent to it next
    matched: int = 0  # its log is the leader's up to here, on its disk
    probe: int = 0  # the newest one that it has answered


class Leading:
    """The state of one term of leading. Probes number the questions of reads: an answer to a message that was sent before a
    question came says nothing of it (Q10)."""

    def __init__(self, names: tuple[str, ...], last: int, heard: set[str]) -> None:
        self.followers = {name: Follower(last + 1) for name in names}
        self.learners: dict[str, None] = {}  # that are copied to, and let in once they have all that is committed (Q9)
        self.heard = heard  # from whom an answer came since the last election timeout
        self.probe = 0
        self.first_of_term = last + 1

    def follow_all(self, members: Membership, own_name: str, last: int) -> None:
        """Members that are new from now on are sent to, too."""
        for name in members.names:
            if name != own_name and name not in self.followers:
                self.followers[name] = Follower(last + 1)

    def targets(self, members: Membership, own_name: str) -> list[str]:
        """To whom entries are sent: the members of all groups, and learners."""
        names = dict.fromkeys((*members.names, *self.learners))
        names.pop(own_name, None)
        return list(names)

    def answered(self, name: str, probe: int) -> Follower:
        """A follower has answered a message of this term."""
        self.heard.add(name)
        follower = self.followers.setdefault(name, Follower(1))
        follower.probe = max(follower.probe, probe)
        return follower

    def matched(self, index: int) -> list[str]:
        """The members that have the log up to this entry on disk, beside the leader."""
        return [name for name, follower in self.followers.items() if follower.matched >= index]

    def have_answered(self, probe: int) -> list[str]:
        """The members that have answered a message with this probe, or a later one."""
        return [name for name, follower in self.followers.items() if follower.probe >= probe]
