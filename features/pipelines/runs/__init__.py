"""Claims, webhook events and retention of runs. Nothing here writes a run's state."""
