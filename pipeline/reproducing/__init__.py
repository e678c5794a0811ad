"""A run's computations done once more from its own data, and compared with what it made.

What was sampled is data, and is taken over. Grouping, scoring and training are functions of it.
"""
