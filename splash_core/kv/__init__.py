"""The arena: one allocation in which weights borrow slots from the KV pool."""
