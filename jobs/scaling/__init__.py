"""How many workers a model wants: an operator's settings, the rule, and the kept totals that the SQL function reads."""
