"""Which runs of pipelines a control worker goes on with, and how many at once.

Refuses to know what a run does: that is `jobs.pipelines.advancing`.
"""
