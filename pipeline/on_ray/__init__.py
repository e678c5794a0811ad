"""Work shared by a Ray cluster. Ray is imported by `cluster`, `crew` and `ranges` alone, inside functions."""
