"""Logged traces as training data: one file a format, one normal form, one way from there to the tables."""
