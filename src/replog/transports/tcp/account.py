"""The charges of one connection, in its own sum and in the budget of all connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replog.transports.tcp.budget import Budget


class Account:
    """The bytes that one connection uses: requests, frames that are arriving, and answers until they are sent."""

    __slots__ = ("answer_bytes", "budget", "bytes_max", "charged_bytes", "requests")

    def __init__(self, budget: Budget, bytes_max: int) -> None:
        self.budget = budget
        self.bytes_max = bytes_max  # of one connection, if it has more than one message or answer
        self.charged_bytes = 0
        self.answer_bytes = 0  # of these: for answers, set aside or waiting to be sent
        self.requests: dict[int, int] = {}  # bytes that each request takes until it is answered

    def charge(self, change_bytes: int) -> None:
        """Charges these bytes, or gives them back if negative."""
        self.charged_bytes += change_bytes
        self.budget.charge(change_bytes)

    def charge_answers(self, change_bytes: int) -> None:
        """Charges bytes for answers, or gives them back if negative."""
        self.charged_bytes += change_bytes
        self.answer_bytes += change_bytes
        self.budget.charge_answers(change_bytes)

    def close(self) -> None:
        """Gives everything back."""
        self.requests.clear()
        self.charge_answers(-self.answer_bytes)
        self.charge(-self.charged_bytes)
