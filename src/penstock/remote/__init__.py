"""Talking to a job that runs in another process."""
