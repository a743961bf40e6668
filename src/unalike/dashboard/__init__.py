"""One page that follows a run or a federation by its files; it reads and never writes."""
