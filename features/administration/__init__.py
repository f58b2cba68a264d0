"""Administration by operators: tenants, keys, budgets, models, workers; and the log of their changes."""
