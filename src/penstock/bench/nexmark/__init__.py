"""Nexmark: the queries of an auction site over streams of persons, auctions and bids."""
