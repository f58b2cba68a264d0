"""Claimed chunks: `run` has their lines answered and writes the results, under a lease that is held.

`answerer` is what it asks of what answers lines; the modules `engine_…` are that of our own engine.
"""
