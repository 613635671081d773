"""The checkpoint store: files, layout, metadata, claims and cleaning."""
