"""Matrix products over weights in panels of columns, by a selected unit of the CPU."""
