"""Courses: work on all documents of a collection, stage by stage, each a batch. Extractions and indexes are courses.

Independent of what a stage does and produces.
"""
