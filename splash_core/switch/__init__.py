"""A switch as a difference of two ownerships: manifest and planner."""
