"""What operators change: tenants, keys, budgets, models, stores; each change with its entry in the admin log.

The command line and the HTTP API change these things here and nowhere else. Knows no request and no terminal.
"""
