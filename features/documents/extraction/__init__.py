"""Documents in, fields out: text with its places, fields asked of it, answers grounded in it. No SQL, no HTTP."""
