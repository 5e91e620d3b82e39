"""Plain-torch references for every kernel, and the fast versions beside them."""
