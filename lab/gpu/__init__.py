"""Everything that is to be measured on one GPU, in one command: `python -m lab.gpu`."""
