"""The three services and the command line."""
