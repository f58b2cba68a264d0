"""Commands for whoever runs the service: schema, tenants, keys, workers, the admin log, audit. They talk to Postgres directly.

What they change, `jobs.administration` changes; they know no SQL.
"""
