"""Windows: how a stream is cut into finite pieces, and the operators that aggregate each piece."""
