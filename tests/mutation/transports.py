"""Mutants of the transports: memory that peers take, and what gives it back (B9)."""

from tests.mutation.table import SourceMutant


def _memory(name: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(f"memory-{name}", "B9", file, old, new, why, ("tests/transports/tcp/test_half_messages.py",))


MUTANTS = (
    _memory(
        "of-half-messages-kept",
        "transports/tcp/session.py",
        "            self._splitter.forget()\n",
        "",
        "what peers sent of messages stays when they have left, until Python looks for cycles",
    ),
    _memory(
        "not-returned",
        "transports/tcp/listener.py",
        "                await run_in_thread(return_freed_memory)\n",
        "                pass\n",
        "the heap stays as large as the largest flood, as long as one small block behind it lives",
    ),
)
