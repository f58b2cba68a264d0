"""`tokenmill extract`: documents into fields, in stages that each go on where they were stopped.

What a stage asks and what its answers mean, `extraction/` says; here are files, batches, progress and the terminal.
"""
