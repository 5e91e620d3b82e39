"""Checks of a host and of a running cluster, each with its remedy."""
