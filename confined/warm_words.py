"""What a warm process and its parent send each other over their socket."""

from __future__ import annotations

import struct

FORK = b"f"
"""With two descriptors: what the fork reads from, and what it writes to."""
END = b"e"
"""End the fork; the answer is a CODE."""
TIME = b"t"
"""Tell the processor time of the fork; the answer is a MICROSECONDS."""
MICROSECONDS = struct.Struct("<q")
"""Of processor time; below 0 where the system does not tell."""
CODE = struct.Struct("<qq")
"""Exit status of the fork, or below 0 that of a signal; and its MICROSECONDS."""
SIZE = struct.Struct("<Q")
"""Of what a warm process says of itself, which follows."""
