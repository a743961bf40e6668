"""The page of hooks says of every hook what it means and when it is called, or what holds without it."""

from __future__ import annotations

import re

from docs_scripts import script


def test_page_has_every_hook_of_every_role_with_its_arguments():
    made = script("site_roles")
    sections = re.split(r"^## ", made.page(), flags=re.MULTILINE)[1:]
    listed = {}
    for section in sections:
        title, _, text = section.partition("\n")
        listed[title.strip("`")] = re.findall(r"^\| `(\w+\(.*?\))` \| .+ \|$", text, re.MULTILINE)
    assert "step(server, update, cohort)" in listed["ServerStep"]
    assert "choose(candidates, state)" in listed["Sampler"]
    declared = {role.__name__: [*made.hooks(role)] for role in made.all_roles()}
    declared["Every part"] = declared.pop("Part")
    names = {title: [hook.partition("(")[0] for hook in hooks] for title, hooks in listed.items()}
    assert names == {title: hooks for title, hooks in declared.items() if hooks}


def test_every_hook_says_what_it_is():
    made = script("site_roles")
    silent = []
    for role in made.all_roles():
        for name, hook in made.hooks(role).items():
            if not made.first_paragraph(hook).endswith("."):
                silent.append(f"{role.__name__}.{name}")
    assert silent == []
