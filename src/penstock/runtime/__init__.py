"""What executes: tasks, channels, the network, the worker and the master. Knows nothing of Spark."""
