"""Kernels: the few loops over columns that NumPy, Arrow and Polars do not do in one pass."""
