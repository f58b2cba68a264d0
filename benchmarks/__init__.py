"""Measurements that users can repeat: throughput on a workload, and the models to measure with."""
