"""`tokenmill worker --models A,B`: serves one of several models at a time, by a worker process for each turn."""
