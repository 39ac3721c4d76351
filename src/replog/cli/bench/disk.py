"""What the disk alone achieves: writes that are made durable one after another, as lone appends must be."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import trio

from replog.cli.bench.samples import Samples
from replog.errors import ConfigError
from replog.runtime.platform import sync_all, sync_data

_FILE_BYTES = 16 << 20  # overwritten again and again, because a journal's space is allocated before too


async def measure(directory: Path, size_bytes: int, seconds: float) -> Samples:
    """Write for so many seconds to a temporary file. Raises `ConfigError` if there can be none. If cancelled, it ends soon."""
    is_left = [False]
    try:
        return await trio.to_thread.run_sync(_measure, directory, size_bytes, seconds, is_left, abandon_on_cancel=True)
    except OSError as error:
        raise ConfigError(f"--fdatasync {directory}: cannot be measured there: {error.strerror or error}") from error
    finally:
        is_left[0] = True


def _measure(directory: Path, size_bytes: int, seconds: float, is_left: list[bool]) -> Samples:
    samples = Samples()
    # Random: some disks and file systems compress, and zeros would be free.
    data = os.urandom(size_bytes)
    with tempfile.TemporaryFile(dir=directory) as file:
        descriptor = file.fileno()
        _fill(descriptor, max(_FILE_BYTES, size_bytes))
        end_s = time.monotonic() + seconds
        offset = 0
        while not is_left[0] and (not samples.count or time.monotonic() < end_s):
            began_s = time.perf_counter()
            os.pwrite(descriptor, data, offset)
            sync_data(descriptor)
            samples.add(time.perf_counter() - began_s)
            offset = 0 if offset + 2 * size_bytes > _FILE_BYTES else offset + size_bytes
    return samples


def _fill(descriptor: int, size_bytes: int) -> None:
    zeros = bytes(1 << 20)
    for offset in range(0, size_bytes, len(zeros)):
        os.pwrite(descriptor, zeros, offset)
    # With all metadata: the measured syncs then find the file's size and blocks unchanged, as in a journal.
    sync_all(descriptor)
