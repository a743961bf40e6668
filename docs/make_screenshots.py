"""Make the screenshots of pages for the documentation: python docs/make_screenshots.py

Needs Playwright and a Chromium on the PATH. The comparison of four hospitals of `make demo` and small ones on the digits data set
are run first; with --runs they are kept and not run again. `--width 390 --dark --images phone` makes them of a narrow, dark screen.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import unalike as ua
from unalike.comparison.joining.joined import join
from unalike.reporting import write_text

METHODS = ["fedavg", "fedprox(mu=1)", "scaffold", "fedmix", "fedavgm", "ditto"]
PARTITIONS = [
    *(f"dirichlet(alpha={alpha})" for alpha in (0.1, 0.05, 0.3, 1.0)),
    *("iid", "pathological(classes=2)", "shards(per_client=2)", "quantity(beta=0.5)"),
]
WORK = ua.Work(lr=0.1, batch_size=16, epochs=2)

HOSPITALS = Path(__file__).parents[1] / "examples" / "hospitals.toml"

SHOTS = {
    "report": ("hospitals", None),
    "report-risks": ("hospitals", "#panel-calibration"),
    "report-top": ("one", None),
    "report-curves": ("one", "#how"),
    "report-clients": ("one", "#panel-clients"),
    "report-ranks": ("several", "#over"),
    "diagnosis": ("diagnosis", "#kinds"),
    "tuning": ("tuning", "#which"),
}
"""Screenshot -> (page, selector of the element to show; None for the top of the page)."""

MARGIN = 24
FRAME = """(element, margin) => {
    const box = element.getBoundingClientRect(), above = parseFloat(getComputedStyle(element).paddingTop);
    const top = box.y + scrollY + (element.matches("section") ? above : 0) - margin, x = Math.max(0, box.x - margin);
    const right = Math.max(box.right, ...[...element.querySelectorAll("table")].map((t) => t.getBoundingClientRect().right));
    return { x, y: top, width: Math.min(innerWidth, right + margin) - x, height: box.bottom + scrollY - top + margin };
}"""
"""The rectangle of an element on the page, with a margin, without the empty space above a section."""


def write_reports(runs: Path) -> dict[str, Path]:
    """Write three reports, of hospitals, of digits, and of several partitions on one page, and a page of each other kind."""
    compare = [
        sys.executable,
        "-m",
        "unalike",
        "compare",
        "--config",
        str(HOSPITALS),
        "--out",
        str(runs / "hospitals"),
    ]
    subprocess.run(compare, check=True)
    tables = []
    for i, partition in enumerate(PARTITIONS):
        options = {
            "clients": 10,
            "model": "mlp(hidden=(32,))",
            "rounds": 12,
            "seeds": 3,
            "work": WORK,
            "val": 0.1,
        }
        table = ua.compare(
            METHODS, data="digits", partition=partition, out=runs / f"{i}", **options
        )
        tables.append((partition, table))
    one = runs / "one.html", join(tables[:1]).page("Handwritten digits at ten clinics")
    several = runs / "several.html", join(tables).page("Handwritten digits, eight partitions")
    pages = {"one": write_text(one[1], one[0]), "several": write_text(several[1], several[0])}
    found = ua.diagnose(
        10, data="digits", partition="dirichlet(alpha=0.3)", rounds=2, model="linear", work=WORK
    )
    tuned = ua.tune(
        ["fedavg", "fedprox", "scaffold", "fedadam"],
        data="digits",
        partition="dirichlet(alpha=0.3)",
        model="mlp(hidden=(32,))",
        trials=16,
        rounds=20,
        seeds=5,
        work=WORK,
        out=runs / "tuning",
    )
    results = {"diagnosis": found, "tuning": tuned}
    saved = {name: result.save(runs / name) for name, result in results.items()}
    return pages | saved | {"hospitals": runs / "hospitals" / "report.html"}


def shoot(pages: dict[str, Path], images: Path, width: int, scheme: str) -> None:
    """Take the screenshots `SHOTS`."""
    chromium = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    with sync_playwright() as engine:
        browser = engine.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        for name, (page, part) in SHOTS.items():
            tab = browser.new_page(viewport={"width": width, "height": 1400}, color_scheme=scheme)
            tab.goto(pages[page].resolve().as_uri())
            for plot in tab.locator(".plot:not([hidden])").all():
                plot.locator("svg.main-svg").first.wait_for()
            clip = None if part is None else tab.locator(part).evaluate(FRAME, MARGIN)
            tab.screenshot(path=images / f"{name}.png", clip=clip, full_page=clip is not None)
            tab.close()
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, help="folder that keeps the comparisons and the pages")
    parser.add_argument("--images", type=Path, default=Path(__file__).parent / "images")
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--dark", action="store_true")
    arguments = parser.parse_args()
    arguments.images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        reports = write_reports(arguments.runs or Path(temporary))
        shoot(reports, arguments.images, arguments.width, "dark" if arguments.dark else "light")
