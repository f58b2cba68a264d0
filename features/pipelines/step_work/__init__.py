"""The work of one step of a run: turns rows into lines, and publishes the answered rows. Writes no state."""
