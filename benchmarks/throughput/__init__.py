"""Output tokens per second of the engine on a workload, alone or compared with its static mode and transformers."""
