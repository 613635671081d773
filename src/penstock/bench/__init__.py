"""`penstock bench`: what this machine reaches, measured by running real jobs on real Spark."""
