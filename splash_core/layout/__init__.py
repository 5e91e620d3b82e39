"""Ownership: which rank holds which projection shard, which KV page, in which slot."""
