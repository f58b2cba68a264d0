"""The hidden rows of whole texts: by encoders, in which a token sees both sides, and by decoders; their dtypes."""
