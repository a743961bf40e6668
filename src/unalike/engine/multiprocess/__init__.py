"""Training in several processes: the pool of workers, the channel between them, the executor that shares clients out."""
