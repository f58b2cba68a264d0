"""`tokenmill reports …`: what became of a pipeline's day."""
