"""What the data is: tables, recipe, execution, manifest, errors. Imports nothing of stages or pipeline."""
