"""Looking at jobs and checkpoints from outside."""
