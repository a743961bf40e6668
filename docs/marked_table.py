"""A generated table on a page, between a mark that names its script and the next end mark."""

END = "<!-- end -->\n"


def with_table(text: str, script: str, table: str) -> str:
    """The text of a page with the table that the script has made."""
    begin = f"<!-- made by docs/{script}.py -->\n"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(END)
    return f"{before}{begin}\n{table}\n{END}{after}"
