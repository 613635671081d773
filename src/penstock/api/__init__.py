"""What users write: pipelines, streams and their settings. The public names are those of `penstock` itself."""
