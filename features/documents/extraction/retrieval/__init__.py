"""Find the passages that a question needs: by their words, by their vectors, or by both.

Knows arrays in memory and their bytes; where they are kept, and who embeds texts, is for others to know.
"""
