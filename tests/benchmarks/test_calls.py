"""The list of what one append enters begins where the application calls, and reaches the bookie's storage."""

from pathlib import Path

from benchmarks.calls import most_frequent, record


async def test_calls_of_an_append_reach_the_storage(tmp_path: Path) -> None:
    calls, _ = most_frequent(await record(1, "memory", tmp_path))
    assert (calls[0].file, calls[0].function, calls[0].depth) == ("log/log_writer.py", "LogWriter.append", 0)
    assert "MemoryStorage.commit" in {call.function for call in calls}
    assert len(calls) < 150
