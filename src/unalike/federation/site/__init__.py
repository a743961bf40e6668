"""A site: its data, its state, and its answers to the coordinator."""
