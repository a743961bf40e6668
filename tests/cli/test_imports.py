"""Imports: heavy libraries load at their first use, every library is declared, public names are found where `_HOMES` says."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import unalike
from unalike import api

ROOT = Path(__file__).parents[2]
OTHERWISE = {
    "pillow": "PIL",
    "scikit-learn": "sklearn",
    "mlflow-skinny": "mlflow",
    "tomli-w": "tomli_w",
    "dp-accounting": "dp_accounting",
    "annotated-types": "annotated_types",
}
"""Distribution name -> module name, where they differ."""

HEAVY = ("pandas", "scipy", "sklearn", "matplotlib", "plotly", "pyarrow", "PIL")


def test_import_of_run_and_load_brings_no_heavy_library():
    code = f"import sys, unalike as ua; ua.run, ua.load, ua.aggregate; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_imported_library_is_a_declared_dependency():
    """A library that comes only as a dependency of another one may be missing after an update."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        line
        for extra, lines in project["optional-dependencies"].items()
        if extra != "dev"
        for line in lines
    ]
    installed = [re.match(r"[\w-]+", line).group() for line in [*project["dependencies"], *extras]]
    known = {OTHERWISE.get(name, name) for name in installed} | {
        "unalike",
        *sys.stdlib_module_names,
    }
    for file in Path(unalike.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = (
                    [node.module or ""]
                    if isinstance(node, ast.ImportFrom) and not node.level
                    else []
                )
            strange = {name.partition(".")[0] for name in names} - known
            assert not strange, f"{file.name} imports {strange}"


def test_public_names_in_api_and_in_lazy_table_agree():
    """Type checkers read the imports of `api`; at run time each name loads from the module that `_HOMES` gives it."""
    imported = {
        alias.name: node.module.removeprefix("unalike.")
        for node in ast.parse(Path(api.__file__).read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {**unalike._HOMES, "__version__": "_utils.version"}
    assert imported == homes
    assert set(api.__all__) == set(unalike.__all__) == set(homes)


def test_public_name_is_defined_in_its_home_module():
    for name, home in unalike._HOMES.items():
        found = getattr(unalike, name)
        assert found is getattr(api, name)
        assert found.__module__ == f"unalike.{home}" and not isinstance(found, ModuleType)


def test_public_name_is_not_also_a_module_of_the_package():
    """Importing a module `unalike.run` would replace the function `unalike.run`."""
    assert not [name for name in unalike._HOMES if find_spec(f"unalike.{name}")]
