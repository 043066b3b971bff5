"""Checks of the notebooks' exercises: each says whether an answer is right, and never gives it away."""
