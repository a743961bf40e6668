"""The coordinator: rounds by exchange of messages with the sites."""
