"""What tenants use: tokens, money, limits."""
