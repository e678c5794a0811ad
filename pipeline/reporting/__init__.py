"""The report of a run: one self-contained HTML page for people, the same numbers as JSON for machines."""
