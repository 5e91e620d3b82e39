"""Which layout to run: pure functions over a snapshot."""
