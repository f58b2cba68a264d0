"""Messages between a warm process and its parent over their socket."""

from __future__ import annotations

import struct

FORK = b"f"
"""With two descriptors: the fork's input and output."""
END = b"e"
"""End the fork; the answer is a CODE."""
TIME = b"t"
"""Report the processor time of the fork; the answer is a MICROSECONDS."""
MICROSECONDS = struct.Struct("<q")
"""Processor time; negative where the system does not report it."""
CODE = struct.Struct("<qq")
"""Exit status of the fork, or the negative number of a signal; and its MICROSECONDS."""
SIZE = struct.Struct("<Q")
"""Size of the ready message that follows."""
