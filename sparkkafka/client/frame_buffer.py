"""The memory that replies are received into."""

from __future__ import annotations

from typing import Any

import numpy as np


class FrameBuffer:
    """Memory for one frame after the other. Filling fresh memory takes half as long again.

    Whoever receives into it has no more use for the frame before.
    """

    def __init__(self) -> None:
        self._data: Any = np.empty(0, np.uint8)

    def room(self, size_bytes: int) -> memoryview:
        """So many writable bytes; what is in them means nothing."""
        if len(self._data) < size_bytes:
            # Frames of one series differ a little. (Views of the old memory keep it alive.) Not a
            # bytearray, which writes zeros first: it would touch all that a false length asks for.
            self._data = np.empty(size_bytes + size_bytes // 8, np.uint8)
        return memoryview(self._data)[:size_bytes]
