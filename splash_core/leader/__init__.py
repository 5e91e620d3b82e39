"""The leader process of a worker group: drives ranks, leases, handoffs and switches; loads no weights."""
