"""Tool calls in the forms that models write them: read from output, written into prompts, enforced by grammars."""
