"""A bookie keeps what it knows of ledgers that are in use, ten thousand of them too: else each add asks the storage again."""

from replog.backends.memory import MemoryStorage
from replog.bookie.server import BookieServer
from replog.config import BookieOptions

LEDGERS = 10_000


def test_ten_thousand_ledgers_in_use_are_kept() -> None:
    server = BookieServer(MemoryStorage(), BookieOptions(storage="memory"), lambda _event: None)
    found = [server.ledger(each) for each in range(1, LEDGERS + 1)]
    assert all(server.ledger(each) is ledger for each, ledger in enumerate(found, start=1))
