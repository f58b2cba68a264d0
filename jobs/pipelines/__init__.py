"""Pipelines: what is run, when, and what became of each run; a run is a graph of ordinary batches.

Refuses to know how rows are read, rendered and written: that is `pipelines`; and who may run lines: that is `chunks`.
"""
