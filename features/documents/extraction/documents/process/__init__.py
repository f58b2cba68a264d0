"""Files are read in a process of their own, which may hang, grow or die: one document fails, and the next goes on.

Knows no format; strangers' bytes are looked at in the child alone.
"""
