"""Studies of `tokenmill_wanted_workers`: a simulated week, its time at 10,000 batches, and real workers from 0 to 2."""
