"""The client half of a round: the task of a client, its local steps, its update, and its states between rounds.

Start reading at `client_update.py`.
"""
