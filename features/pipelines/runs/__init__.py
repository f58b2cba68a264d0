"""What is about a run beside its work: who is at it, who is told of it, and how long it is kept.

Knows neither what a run does nor what comes next: no state of one is written here.
"""
