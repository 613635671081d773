"""The control connection between the driver's master and its workers."""
