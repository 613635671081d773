"""Operator cases: jobs around one kind of operator each, and what they must put out, computed independently."""
