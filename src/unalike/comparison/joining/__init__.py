"""Several comparisons: side by side (`joined.py`), or combined into one (`merging.py`)."""
