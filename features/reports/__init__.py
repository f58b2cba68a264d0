"""Reports: what became of a pipeline's runs of a day, beside those of the nights before."""
