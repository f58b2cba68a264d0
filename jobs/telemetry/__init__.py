"""Telemetry: meters, log lines and traces, the same in every role.

Independent of tables and roles, which choose what to report.
"""
