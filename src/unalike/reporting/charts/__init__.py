"""Charts: figures as data (`figure.py`), drawn for pages (`plotly_figures.py`) and for papers (`matplotlib_figures.py`)."""
