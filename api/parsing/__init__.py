"""Bodies of megabytes, parsed by a process of their own: in this one each would hold the event loop while it is read.

Knows no tenant and no request.
"""
