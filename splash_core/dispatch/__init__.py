"""Which groups a request goes to, and whether it may enter: arithmetic that router and simulator share."""
