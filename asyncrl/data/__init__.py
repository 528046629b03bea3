"""Prompts: their files, and the order in which a run uses them."""
