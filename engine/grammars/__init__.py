"""Constrain output to a grammar: compiled beside the loop, masks written while the device computes."""
