"""The same method as a real federation: a coordinator, and sites that keep their data."""
