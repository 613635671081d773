"""Penstock, Flink, Spark Structured Streaming, Bytewax and Polars on the same workloads, one after another."""
