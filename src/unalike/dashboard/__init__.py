"""A web page that follows a run or a federation through its files. It only reads.

Imports `federation`, `runtime` and `_utils`. Start reading at `server.py`.
"""
