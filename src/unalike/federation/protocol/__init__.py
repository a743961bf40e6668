"""The protocol between coordinator and sites: signed envelopes, requests, and the federation file that all agree to.

Imports `security/`. Start reading at `messages.py` and `envelope.py`.
"""
