"""One HTML file with the results of an extraction: texts with marked values, scores, values to review.

The file loads nothing from elsewhere and contains no script.
"""
