"""The lines of a batch: their answers and failures beside their requests, by number, status and code."""
