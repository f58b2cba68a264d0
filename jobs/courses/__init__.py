"""What is done to all documents of a collection, stage by stage, each a batch: extractions and indexes.

Knows not what a stage does, nor what comes of it.
"""
