"""Write the table of docs/how_to/tasks.md from the classes of methods, plans and tasks: python docs/make_tasks.py"""

from __future__ import annotations

from pathlib import Path

from marked_table import with_table

from unalike.core.tasks.registry import all_tasks
from unalike.methods.part import Part, registry
from unalike.methods.plan import method_of, plan

PAGE = Path(__file__).with_name("how_to") / "tasks.md"
HEAD = "| Methods | run on |\n| :-- | :-- |\n"


def needs(name: str) -> set[str]:
    """The traits of tasks that a method or plan needs."""
    built = plan(name)
    found = {part.needs_of_task for part in method_of(built).parts}
    return (found | {built.needs_of_task}) - {""}


def table() -> str:
    """A row for each group of methods that need the same; methods that need nothing are not listed."""
    by_needs: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(registry):
        builder = registry[name]
        # a part without a name of its own is shown as the methods that it makes
        is_part = isinstance(builder, type) and issubclass(builder, Part)
        if is_part and not builder.has_own_name:
            continue
        wanted = tuple(sorted(needs(name)))
        if wanted:
            by_needs.setdefault(wanted, []).append(name)
    rows = ""
    for wanted, names in sorted(by_needs.items()):
        tasks = [task.name for task in all_tasks() if all(map(task.offers, wanted))]
        rows += f"| `{'`, `'.join(names)}` | `{'`, `'.join(tasks)}` |\n"
    return HEAD + rows


def page(text: str) -> str:
    """The page with the table as it is now."""
    return with_table(text, "make_tasks", table())


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
