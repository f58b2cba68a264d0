"""Commands of operators: tenants, keys, sessions, workers and the admin log. They connect to Postgres.

Changes go through `features.administration`.
"""
