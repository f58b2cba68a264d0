"""What a run does in one step: rows are read and become lines; answers are looked at and put out.

Knows not which step comes next, and writes no state.
"""
