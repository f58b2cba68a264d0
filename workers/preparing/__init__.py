"""The prepare worker: confined processes read and cut documents and ground answers in them. It needs no engine.

Chunks are claimed and held as in a GPU worker.
"""
