"""Records against gold: how much is right, where it stands, and whether the scores mean what they say.

Knows no model and no service.
"""
