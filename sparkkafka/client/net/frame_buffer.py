"""The memory that replies are received into."""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

LARGE_BYTES = 1 << 20
"""From here on memory comes straight from the system."""


class FrameBuffer:
    """Memory for one frame after the other. Filling fresh memory takes half as long again.

    Whoever receives into it has no more use for the frame before.
    """

    def __init__(self) -> None:
        self._data: Any = bytearray()

    def room(self, size_bytes: int) -> memoryview:
        """So many writable bytes; what is in them means nothing."""
        if len(self._data) < size_bytes:
            # Frames of one series differ a little. (Views of the old memory keep it alive.)
            self._data = _memory(size_bytes + size_bytes // 8)
        return memoryview(self._data)[:size_bytes]


def _memory(size_bytes: int) -> bytearray | mmap.mmap:
    """A large piece is not a bytearray, which writes zeros first: that would touch all that a false
    length asks for. (Nor numpy's, which the driver's processes do without.)"""
    if size_bytes < LARGE_BYTES or not hasattr(mmap, "MAP_PRIVATE"):
        return bytearray(size_bytes)
    piece = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without it
            piece.madvise(mmap.MADV_HUGEPAGE)
    return piece
