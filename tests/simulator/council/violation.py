"""The violation of a schedule."""


class Violation(Exception):
    """A rule that does not hold, and how that showed."""

    def __init__(self, rule: str, problem: str) -> None:
        super().__init__(f"{rule}: {problem}")
        self.rule = rule
