"""One remedy a file. Each part is a short frozen dataclass whose code looks like its formula."""
