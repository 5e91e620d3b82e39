"""One rank: executes step plans and manifests."""
