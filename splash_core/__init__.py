"""Splash's core: the planning half is pure Python, the acting half is thin. `docs/architecture.md` is the map."""
