"""Tables through prompts: reads rows, renders them into prompts, and turns answers into rows again."""
