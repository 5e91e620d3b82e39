"""The fault matrix of the handoff: real groups, disturbed from outside at precise points."""
