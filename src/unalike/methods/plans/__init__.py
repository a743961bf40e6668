"""Plans of several stages, and the references that methods are compared with."""
