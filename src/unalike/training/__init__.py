"""The two halves of a round, written once: `client_update.train` on a client, `server_update.advance` on the server.

Imports `methods`, `core` and `_utils`. Start reading at `client/client_update.py`.
"""
