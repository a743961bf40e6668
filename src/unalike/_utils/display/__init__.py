"""Display in notebooks: HTML that objects show of themselves, figures by name, a progress bar.

Imports `_utils` alone. Start reading at `html.py`.
"""
