"""Commands for usage, quotas and budgets, of tenants and of operators."""
