"""Heavy libraries load when they are used, not before; what is imported at all is among the dependencies."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import unalike

ROOT = Path(__file__).parents[2]
OTHERWISE = {
    "pillow": "PIL",
    "scikit-learn": "sklearn",
    "mlflow-skinny": "mlflow",
    "tomli-w": "tomli_w",
    "dp-accounting": "dp_accounting",
}
"""What is imported under another name than it is installed by."""

HEAVY = ("pandas", "scipy", "sklearn", "matplotlib", "plotly", "pyarrow", "PIL")


def test_running_and_loading_import_no_heavy_library():
    code = f"import sys, unalike as ua; ua.run, ua.load, ua.aggregate; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_all_that_is_imported_is_declared():
    """A library that another one used to bring may be gone tomorrow."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for extra, lines in project["optional-dependencies"].items() if extra != "dev" for line in lines]
    installed = [re.match(r"[\w-]+", line).group() for line in [*project["dependencies"], *extras]]
    known = {OTHERWISE.get(name, name) for name in installed} | {"unalike", *sys.stdlib_module_names}
    for file in Path(unalike.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            strange = {name.partition(".")[0] for name in names} - known
            assert not strange, f"{file.name} imports {strange}"


def test_type_checkers_see_every_public_name():
    """They take a name as public that is imported "as" itself, and a module for what it is although a function has its name."""
    tree = ast.parse(Path(unalike.__file__).read_text())
    [block] = [n for n in tree.body if isinstance(n, ast.If) and getattr(n.test, "id", "") == "TYPE_CHECKING"]
    seen = {alias.asname: (node.module, alias.name) for node in block.body for alias in node.names}
    assert {*seen, "__version__"} == {*unalike.__all__}
    for public, (module, name) in seen.items():
        home = import_module(module)
        assert getattr(home, name) is getattr(unalike, public) and not isinstance(getattr(home, name), ModuleType)
        assert not hasattr(home, "__path__") or find_spec(f"{module}.{name}") is None, (
            f"{module}.{name} is a module, too"
        )
