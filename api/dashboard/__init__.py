"""What the queue knows, seen in a browser: pages that read, rendered here, whose buttons call `/v1` as any client does.

Adds no truth of its own: numbers come from `jobs`, actions go through the API's own routes. Knows no engine.
"""
