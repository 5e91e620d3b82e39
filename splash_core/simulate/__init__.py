"""Serving on a simulated clock: the product's own decisions, and the cost model tells how long steps take."""
