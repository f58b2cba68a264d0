"""`tokenmill models …`: models that batches may use, their prices, and their files on this machine.

Workers check the content of a model's files.
"""
