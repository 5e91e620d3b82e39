"""The decode service: reservations, continuous batching."""
