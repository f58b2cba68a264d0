"""What pages show of the whole service: a few bounded queries each, for one tenant or, with None, for all.

Reads only, but for the points of plots, which it keeps. Knows no HTTP and decides nothing.
"""
