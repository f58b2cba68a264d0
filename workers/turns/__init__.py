"""What control workers take up in turns between tenants: runs of pipelines, and extractions.

Knows no step and no stage.
"""
