"""Privacy, attacks and Poisson batches act through what methods, parts and settings declare: few files ask about them.

A file that asks would have to be found again for the next capability. The answer is a class attribute or a hook of `Part` with
a default that holds for all other parts, such as `hides_client_numbers`, `releases_once`, `least_cohort` and `advice_if_diverged`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "unalike"

QUESTION = re.compile(r"privacy|attack|malicious|poisson|secret_noise|noise_multiplier", re.I)
"""Names in code that are about one of the three."""

HOMES = (
    "methods/",  # the parts, and what methods answer about them
    "core/privacy.py",  # the accounting
    "core/work.py",  # how a Poisson batch is drawn
    "federation/site/release_ledger.py",  # the accounting of a site, over all runs
    "metrics/named_metrics.py",  # the success of an attack, a metric like others
)
"""Files and folders where the things themselves are."""

MAY_ASK = {
    "core/views.py": "the settings of a stage hold who is malicious, and whether noise is secret, for parts to read",
    "runtime/setup/attackers.py": "draws the malicious clients of a run, and says what they train on",
    "runtime/setup/privacy_budget.py": "the epsilon of a stage, with a null object for methods without privacy",
    "runtime/setup/privacy_rules.py": "refuses private runs that let something out unaccounted",
    "runtime/setup/run_config.py": "fills the settings of a stage, and calls the checks of the two files above",
    "runtime/stages/cohort_sampler.py": "draws a cohort as the accounting of privacy was told",
    "runtime/stages/splits.py": "the test samples with the trigger of an attack",
}
"""Other files that may ask, and why."""

CALLS = {"privacy_budget"}
"""Names that ask nothing: calls that give every stage a budget, of which most forbid nothing."""


def names_in(path: Path) -> Iterator[str]:
    """The names in a file: of variables, attributes, arguments, keywords, functions, classes and what it imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        for field in ("id", "attr", "arg", "name"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield name


def asks(path: Path) -> bool:
    return any(QUESTION.search(name) for name in set(names_in(path)) - CALLS)


def test_few_files_ask_about_privacy_attacks_and_poisson_batches():
    asking = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if asks(path)}
    at_home = {name for name in asking if name.startswith(HOMES)}
    assert asking - at_home == MAY_ASK.keys()
    assert len(MAY_ASK) <= 9
    for home in HOMES:
        assert any(name.startswith(home) for name in at_home), f"{home} has nothing of the three"
