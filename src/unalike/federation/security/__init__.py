"""Keys, certificates and the bundles that sites are handed."""
