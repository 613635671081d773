"""Keyed state in RocksDB: larger than memory, in bounded memory, with checkpoints that share RocksDB's own files."""
