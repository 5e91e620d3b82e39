"""`splash bench`: measured tables with machine, commit and settings."""
