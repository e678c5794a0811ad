"""The tasks that ship: programs, metrics, and the script that made their data."""
