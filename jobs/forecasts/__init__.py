"""When batches will end, what they wait for, and how fast their models' workers are.

Knows no HTTP and moves no batch: what is forecast here decides nothing.
"""
