"""One HTML file that shows what an extraction found: texts with values marked, scores, what to review.

Knows no file and no service; nothing in it is loaded from elsewhere, and it has no script.
"""
