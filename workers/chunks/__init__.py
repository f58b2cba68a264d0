"""Claimed chunks: `run` has their lines answered and writes the results while it holds the lease.

`answerer` is the interface that answers lines; the modules `engine_…` implement it with our own engine.
"""
