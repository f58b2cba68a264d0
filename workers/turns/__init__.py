"""What control workers take up in turns between tenants: batches, runs of pipelines, and extractions.

Knows not what is done with one.
"""
