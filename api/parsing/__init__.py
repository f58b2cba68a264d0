"""Parses bodies of megabytes in a separate process, as parsing would block the event loop of this one."""
