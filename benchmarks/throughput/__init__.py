"""Output tokens per second of the engine on a workload, alone or beside its static mode and transformers."""
