"""Splash's core: the planning half is pure Python, the acting half is thin; see docs/architecture.md."""
