"""Serving on a simulated clock: the product's own decisions, with the cost model telling how long steps take."""
