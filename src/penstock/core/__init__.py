"""The protocol, sans-I/O: events in, instructions out. Nothing here knows Spark, sockets, files, threads, clocks
or randomness."""
