"""The server half of a round: checks of updates, their aggregation, and the server step. Start reading at `server_update.py`."""
