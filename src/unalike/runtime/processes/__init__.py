"""The backend of several processes: the leader runs the round loop, worker processes train and evaluate their share of the clients.

The pool of processes, its transport and the executor that shares clients out are in `engine/multiprocess`. Start reading at
`launch.py`.
"""
