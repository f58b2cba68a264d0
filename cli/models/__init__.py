"""The models that batches may name: what they cost, where they are, and how they come to this machine.

Knows no engine: what a model's files hold is a worker's to judge.
"""
