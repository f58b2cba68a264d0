"""What is used, what may be used and what it costs: commands of tenants and of operators.

Knows no ledger: servers and the database answer.
"""
