"""Commands for whoever runs the service: schema, tenants, keys, workers, admin log, audit. They ask Postgres directly.

What they change, `features.administration` changes; they know no SQL.
"""
