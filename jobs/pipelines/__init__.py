"""Pipelines: what is run, when, and what became of each run; a run is a graph of ordinary batches.

How tables are read, rendered and written `pipelines` knows, the package; who may run lines, `jobs.chunks`.
"""
