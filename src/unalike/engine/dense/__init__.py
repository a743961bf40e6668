"""Faster training of dense models on a CPU: gradients by hand, and compiled loops."""
