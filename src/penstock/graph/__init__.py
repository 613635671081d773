"""From the user's logical plan to the job graph: uids, chaining, partitioning, validation."""
