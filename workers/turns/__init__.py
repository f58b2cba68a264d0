"""What control workers take up in turns between tenants: batches, runs of pipelines, extractions and indexes.

Knows not what is done with one.
"""
