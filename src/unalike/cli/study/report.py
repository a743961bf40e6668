"""`unalike study report`: print a study's tables and findings."""

from __future__ import annotations

from unalike.cli.study import arguments as a

NAME = "report"


def command(name: a.Study, scale: a.ScaleName = "smoke", out: a.Results = None) -> None:
    """Print the tables of a study and the verdicts on its claims, and draw its figures.

    \b
    unalike study report niid-bench-fcube --scale small
    """
    from unalike.studies.catalogue import study
    from unalike.studies.report import write_report
    from unalike.studies.results import FOLDER

    folder = (out or FOLDER) / name / scale
    text, files = write_report(study(name), scale, folder)
    print(text)
    for file in files:
        print(f"figure: {file.resolve()}")
