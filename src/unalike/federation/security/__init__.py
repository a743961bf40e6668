"""Keys that sign messages, certificates for TLS, and the bundle that a site gets.

`bundle.py` imports `protocol/federation_file.py`; the rest imports `_utils` alone. Start reading at `bundle.py`.
"""
