"""State: kinds, backends, codecs, and the parts of a snapshot."""
