"""Keys that sign messages, and certificates for TLS.

Imports `_utils` alone. Start reading at `keys.py`.
"""
