"""How this process's allocator treats freed memory: changed only when a program asks for it."""

from __future__ import annotations

_LARGEST_BYTES = 16 << 20  # as large as a batch can be; glibc follows up to 32 MiB


def keep_freed_memory() -> None:
    """Let this process reuse the memory of large batches instead of returning it to the kernel each time.

    The change lasts as long as the process, and concerns all of its memory: up to twice 16 MiB stay with the process after
    they were freed. Without glibc nothing changes. Calling it again is harmless.
    """
    # glibc maps each large block on its own and unmaps it when it is freed, so every page of the next one is faulted in
    # again. It raises the size from which it does so to that of the largest block that was freed. A zeroed block is mapped
    # but never touched, so this costs two system calls.
    block = bytes(_LARGEST_BYTES)
    del block
