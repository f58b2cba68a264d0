"""Processes that handle what strangers had a hand in: they may hang, grow, die or be taken over, and have nothing.

Their parents start, feed and end them; what they do is written elsewhere.
"""
