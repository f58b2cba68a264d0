"""The order in which people read the words of a page, from their boxes: columns one after another, rows of tables as
lines, turned pages upright.

A page whose words are in order keeps its text. Uses boxes and lengths of words, never their meaning.
"""
