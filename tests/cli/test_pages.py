"""Pages generated from the code are up to date."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_methods_page_equals_generated_page(tmp_path, monkeypatch):
    """Fails if `python docs/make_methods.py` was not run after a change of a docstring or of the catalogue."""
    spec = importlib.util.spec_from_file_location("make_methods", DOCS / "make_methods.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "make_methods.py"))
    module.main()
    assert (tmp_path / "methods.md").read_text() == (DOCS / "methods.md").read_text()
