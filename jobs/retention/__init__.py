"""How long things are kept: what ends is purged, what is old is shortened, and a backup holds all of it meanwhile.

Knows no schedule: when each of it is done is for those to say who call.
"""
