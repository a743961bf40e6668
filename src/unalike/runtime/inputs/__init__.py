"""The options and the model of a run as users give them, checked before anything is trained."""
