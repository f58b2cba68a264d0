"""Flows: batches after batches, advanced by control workers. Runs, extractions and indexes are flows.

A recipe says what a kind of flow does; claims, waits, retries and ends are the same for all.
"""
