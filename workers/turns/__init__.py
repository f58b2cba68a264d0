"""Fair turns between tenants for the work of control workers: batches, pipeline runs, extractions and indexes."""
