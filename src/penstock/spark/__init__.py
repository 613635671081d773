"""Where a job meets Spark: the session, the tasks that host its workers, and the handle of the running job."""
