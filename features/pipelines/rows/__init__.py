"""Tables through prompts: where rows come from, how they become prompts, and how answers become rows again."""
