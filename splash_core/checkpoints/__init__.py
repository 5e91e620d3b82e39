"""Making checkpoints: demo weights into the cache, and tiny random models for tests."""
