"""Tables through a model, on this machine or on a server: rows out, lines in, results back beside their rows.

Knows how to run a batch and go on with one; what rows, prompts and columns are is the business of `pipelines`.
"""
