"""Secure aggregation without messages; the protocol is in `docs/federation/secure_aggregation.md`."""
