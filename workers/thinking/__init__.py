"""Thoughts of a model: their marks in its chat template, the template's variables, and outputs parted by the marks."""
