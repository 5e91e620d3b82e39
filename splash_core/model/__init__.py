"""MLA models: layers that take the layout context, loader, sampler."""
