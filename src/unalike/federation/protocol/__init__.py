"""The protocol between coordinator and sites: signed envelopes, requests, and the federation file that all agree to.

Imports `security/` and nothing else of `federation/`. Start reading at `messages.py` and `envelope.py`.
"""
