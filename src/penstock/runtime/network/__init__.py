"""Authenticated connections between processes, and the exchange of elements and grants over them."""
