"""The charts of the report, for the page (Plotly) and for papers (Matplotlib)."""
