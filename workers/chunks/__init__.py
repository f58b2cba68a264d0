"""Claimed chunks: their lines go into the engine and their results into the database, under a lease that is held.

Knows no tokenizer and no form of an answer, and of SQL only the calls into `jobs`.
"""
