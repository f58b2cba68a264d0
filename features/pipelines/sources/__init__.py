"""Where a first step's rows come from: the files of a tenant's store, or the answers of one of its batches.

Knows neither prompts nor runs: a step and what it may look into go in, rows come out.
"""
