"""KV between groups: registered memory and one-sided writes."""
