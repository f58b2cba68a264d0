"""Measure an installation: throughput on a workload, a running service, and the record of a day for `lab` to replay."""
