"""Measurements of an installation: throughput, a running service, and recording a day for `lab` to replay."""
