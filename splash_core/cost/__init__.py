"""Predicted step and switch times from a hardware profile."""
