"""Prompt optimization: DSPy's optimizers over recorded program runs, resumable and with equal results."""
