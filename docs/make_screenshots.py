"""Take the report's pictures for these pages into `images/`: python docs/make_screenshots.py

Needs Playwright and a Chromium on the PATH. Small comparisons of the digits are run first; with --runs they are kept and not
run again. `--width 390 --dark --images /tmp/phone` shows how the same pages look elsewhere.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import unalike as ua
from unalike.experiments.joining import join
from unalike.reporting import write_text

METHODS = ["fedavg", "fedprox(mu=1)", "scaffold", "fedmix", "fedavgm", "ditto"]
PARTITIONS = [
    *(f"dirichlet(alpha={alpha})" for alpha in (0.1, 0.05, 0.3, 1.0)),
    *("iid", "pathological(classes=2)", "shards(per_client=2)", "quantity(beta=0.5)"),
]
WORK = ua.Work(lr=0.1, batch_size=16, epochs=2)

SHOTS = {
    "report-top": ("one", None),
    "report-curves": ("one", "#how"),
    "report-clients": ("one", "#panel-clients"),
    "report-joined": ("several", "#joined"),
    "report-ranks": ("several", "#over"),
}
"""Picture -> the page, and what of it is shown; None: the top of it."""

MARGIN = 24
FRAME = """(element, margin) => {
    const box = element.getBoundingClientRect(), above = parseFloat(getComputedStyle(element).paddingTop);
    const top = box.y + scrollY + (element.matches("section") ? above : 0) - margin, x = Math.max(0, box.x - margin);
    return { x, y: top, width: Math.min(innerWidth - x, box.width + 2 * margin), height: box.bottom + scrollY - top + margin };
}"""
"""Where an element stands on the page, with a margin around it and without the empty space above a section."""


def pages(runs: Path) -> dict[str, Path]:
    """The reports: of one comparison, and of several partitions on one page."""
    tables = []
    for i, partition in enumerate(PARTITIONS):
        options = {"clients": 10, "model": "mlp(hidden=(32,))", "rounds": 12, "seeds": 3, "work": WORK, "val": 0.1}
        table = ua.compare(METHODS, data="digits", partition=partition, out=runs / f"{i}", **options)
        tables.append((partition, table))
    one = runs / "one.html", join(tables[:1]).page("Handwritten digits at ten clinics")
    several = runs / "several.html", join(tables).page("Handwritten digits, divided in eight ways")
    return {"one": write_text(one[1], one[0]), "several": write_text(several[1], several[0])}


def shoot(found: dict[str, Path], images: Path, width: int, scheme: str) -> None:
    """One picture for each of `SHOTS`."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for name, (page, part) in SHOTS.items():
            tab = browser.new_page(viewport={"width": width, "height": 1400}, color_scheme=scheme)
            tab.goto(found[page].resolve().as_uri())
            for plot in tab.locator(".plot:not([hidden])").all():
                plot.locator("svg.main-svg").first.wait_for()
            clip = None if part is None else tab.locator(part).evaluate(FRAME, MARGIN)
            tab.screenshot(path=images / f"{name}.png", clip=clip, full_page=clip is not None)
            tab.close()
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="keep the comparisons and the pages here")
    parser.add_argument("--images", type=Path, default=Path(__file__).parent / "images")
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--dark", action="store_true")
    given = parser.parse_args()
    given.images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        shoot(pages(given.runs or Path(temporary)), given.images, given.width, "dark" if given.dark else "light")
