"""The engine host: keeps one engine and its requests alive. Token ids in, token ids out."""
