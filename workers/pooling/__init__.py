"""The worker of a pooling model, which answers with vectors or scores: lines are computed in groups."""
