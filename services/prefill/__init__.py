"""The prefill service: chunked prefill, then handoff."""
