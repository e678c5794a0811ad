"""Audits: what a run says of itself is computed anew from what it was made from, and compared."""
