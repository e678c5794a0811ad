"""Lineage of one thing, both ways: what it was made from, and what came of it."""
