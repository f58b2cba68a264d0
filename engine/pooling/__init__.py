"""Turn texts into vectors, and pairs of texts into scores, with encoders and decoders on the CPU."""
