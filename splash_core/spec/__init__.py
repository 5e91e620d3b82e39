"""Nouns: what is served (model), on what (hardware), and what is asked (request)."""
