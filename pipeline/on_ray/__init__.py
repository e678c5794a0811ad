"""Work shared by a Ray cluster. Ray is imported inside functions of this package alone."""
