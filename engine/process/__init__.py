"""The engine in a process of its own, and the messages between it and its parent."""
