"""All measurements on one GPU in one command: `python -m lab.gpu`."""
