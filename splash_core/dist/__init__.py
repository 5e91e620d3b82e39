"""Collectives behind one interface, and process-group start-up."""
