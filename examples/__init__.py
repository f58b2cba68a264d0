"""The demo: a toy model, the documents it was trained on, and a batch to run."""
