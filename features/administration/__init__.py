"""What operators change: tenants, keys, budgets, models, workers; and the log of it."""
