"""Draft the next tokens of a sequence, where that pays."""
