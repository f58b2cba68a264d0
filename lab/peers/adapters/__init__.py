"""One script for each engine: reads a job from standard input, runs it, prints one JSON line.

A script runs with the Python of its own virtual environment, so it imports nothing of ours or of the other scripts. The
job and the line are described in lab/README.md.
"""
