"""What both clients know of reading an output in parts: how far it was read, and where it ended. It does no I/O."""

from __future__ import annotations

from typing import Optional, TypedDict

from . import _constants as constants
from . import types

BEYOND = 2**63 - 1
"""An offset beyond the end of any output, which the daemon takes for its end."""


class Part(TypedDict):
    """The params of a call that reads a part, beside the task."""

    offset: int
    limit: int
    stream: Optional[types.Stream]


class Reading:
    """How far an output was read."""

    def __init__(self, offset: int, stream: Optional[types.Stream]) -> None:
        self.offset = offset
        self.stream = stream
        self._is_reached = False

    def part(self) -> Part:
        """Asks for the next part."""
        return {"offset": self.offset, "limit": constants.OUTPUT_CHUNK_BYTES, "stream": self.stream}

    def end(self) -> Part:
        """Asks for the present end, which is the answer's `next`."""
        return {"offset": BEYOND, "limit": 0, "stream": self.stream}

    def take(self, result: types.OutputResult) -> bool:
        """Takes a part. Returns False if its file was truncated since the part before: it is read again from its
        beginning."""
        # A part has ended here: only if the file was truncated does it now end before.
        if self._is_reached and result["offset"] < self.offset:
            self.offset = 0
            return False
        self.offset = result["next"]
        self._is_reached = True
        return True


def is_last(result: types.OutputResult) -> bool:
    """Returns whether there is nothing after this part for now."""
    return result["eof"] or result["next"] == result["offset"]
