"""The rows of a simulated member's state."""

from __future__ import annotations

from collections.abc import Iterator

OUTCOMES_MAX = 3  # that the state remembers: few, so that schedules meet what is forgotten


class MemoryRows:
    """Rows in a dictionary."""

    def __init__(self, content: dict[bytes, bytes]) -> None:
        self.content = content

    def get(self, row: bytes) -> bytes | None:
        return self.content.get(row)

    def put(self, row: bytes, value: bytes) -> None:
        self.content[row] = value

    def delete(self, row: bytes) -> None:
        self.content.pop(row, None)

    def rows_from(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        for row in sorted(row for row in self.content if row >= first):
            yield row, self.content[row]
