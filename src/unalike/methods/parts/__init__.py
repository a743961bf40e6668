"""The parts, one remedy a file. Each is a short frozen dataclass with code that looks like its formula."""
