"""The target table and the page, from the result file: processor -> `machine`, `sections` and `note`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from contenders import FLOWER, PEERS, PFLLIB
from workloads import WORKLOADS

Results = dict[str, Any]
"""Parts of the result file."""
GPU = Path(__file__).parent / "gpu.json"
"""Device -> workload -> `contenders`, as `executors.py` writes it."""
SLACK = 2
"""Models by which 90 further clients may raise the peak memory: the allocator keeps some freed buffers."""


class Row(NamedTuple):
    """A line of the target table; `passed` is None if it was not measured, `of_rounds` says that the page has its times below."""

    what: str
    target: str
    found: str
    passed: bool | None
    of_rounds: bool = False

    @property
    def verdict(self) -> str:
        return {True: "pass", False: "FAIL", None: "-"}[self.passed]


def rows(measured: Results) -> list[Row]:
    """The target table of one machine."""
    sections = {name: s["data"] for name, s in measured["sections"].items()}
    return [
        row
        for make in (
            _peers,
            _bare,
            _workers,
            _overhead,
            _evaluation,
            _server,
            _memory,
            _scale,
            _foreign,
            _federation,
        )
        for row in make(sections)
    ]


def _middle(runs: Sequence[Results], key: str = "round") -> float | None:
    values = [run[key] for run in runs if key in run]
    return statistics.median(values) if values else None


def _why(runs: Sequence[Results]) -> str:
    found = next((r.get("skipped") or r.get("why") for r in runs if "round" not in r), None)
    return f"not measured: {found or 'it was not run'}"


def _best(data: Results, wanted: Callable[[str], bool]) -> tuple[str, float] | None:
    """The fastest contender with a name that is wanted, and its median seconds."""
    found = {
        name: m for name, runs in data.items() if wanted(name) and (m := _middle(runs)) is not None
    }
    return min(found.items(), key=lambda pair: pair[1]) if found else None


def _ours(data: Results, precision: str = "float32") -> tuple[str, float] | None:
    bf16 = precision == "bf16"
    return _best(data, lambda name: name.startswith("ours") and name.endswith("bf16") == bf16)


def _ratio(what: str, factor: float, data: Results, name: str, precision: str = "float32") -> Row:
    """Speed of our fastest setting relative to a contender."""
    target, mine, other = f"{factor:g}x faster", _ours(data, precision), _middle(data.get(name, []))
    if mine is None:
        runs = next(
            (
                r
                for n, r in data.items()
                if n.startswith("ours") and n.endswith("bf16") == (precision == "bf16")
            ),
            [],
        )
        return Row(what, target, _why(runs), None)
    if other is None:
        return Row(what, target, _why(data.get(name, [])), None)
    gain = other / mine[1]
    return Row(
        what,
        target,
        f"{gain:.1f}x ({mine[0]})",
        gain >= factor,
        of_rounds=True,
    )


def _peers(sections: Results) -> Iterator[Row]:
    targets = [(name, 40.0) for name in FLOWER.values()] + [
        (PEERS["pfl"], 5.0),
        (PEERS["fedjax"], 3.0),
    ]
    for name, factor in targets:
        yield _ratio(f"2NN against {name}", factor, sections.get("2nn", {}), name)
    for threads in (1, 2):
        yield _ratio(
            f"FedAvgCNN against PFLlib, t{threads}",
            3.0,
            sections.get("fedavgcnn", {}),
            f"{PFLLIB}, t{threads}",
        )


COMPILED = {"2nn": 12.0, "logistic": 200.0, "lenet": 4.0}
"""Targets for small models with compiled loops."""


def _bare(sections: Results) -> Iterator[Row]:
    for workload, factor in (
        ("2nn", 4.3),
        ("logistic", 40.0),
        ("lenet", 2.2),
        ("cnn", 2.2),
        ("resnet20", 2.2),
    ):
        what, data = (
            f"{WORKLOADS[workload].title} against the bare loop t1",
            sections.get(workload, {}),
        )
        yield _ratio(what, factor, data, "bare loop, t1")
        if workload in COMPILED:
            yield _ratio(f"{what}, with compiled loops", COMPILED[workload], data, "bare loop, t1")
        else:
            yield _ratio(f"{what}, bf16", 3.5, data, "bare loop, t1", "bf16")


def _workers(sections: Results) -> Iterator[Row]:
    data = sections.get("cnn", {})
    one = _middle(data.get("ours, loop, one core", []))
    name = next((n for n in data if n.startswith("ours, distributed") and "bf16" not in n), "")
    many, target = _middle(data.get(name, [])), "90 % efficiency"
    if one is None or many is None:
        yield Row("SimpleCNN, 2 workers against 1", target, _why(data.get(name, [])), None)
        return
    share = one / many / int(name.partition("workers=")[2].partition(")")[0])
    pairs = [
        r["alone"] / r["both"] for r in sections.get("pair", {}).get("runs", []) if "both" in r
    ]
    limit = (
        f"; two independent processes of plain torch: {statistics.median(pairs):.0%}"
        if pairs
        else ""
    )
    found = f"{share:.0%} ({1e3 * one:.0f} ms; {1e3 * many:.0f} ms{limit})"
    yield Row("SimpleCNN, 2 workers against 1", target, found, share >= 0.9)


def _overhead(sections: Results) -> Iterator[Row]:
    for workload, limit in (("2nn", 0.15), ("cnn", 0.03), ("resnet20", 0.03)):
        runs = [r for r in sections.get("overhead", {}).get(workload, []) if "ours" in r]
        what, target = (
            f"{WORKLOADS[workload].title}: share of a round outside the steps",
            f"under {limit:.0%}",
        )
        if not runs:
            yield Row(what, target, _why(sections.get("overhead", {}).get(workload, [])), None)
            continue
        found, share = _share([1 - r["steps"] / r["ours"] for r in runs])
        yield Row(what, target, f"{found} (our loop, one thread)", share < limit)
        inside = [1 - r["in_loops"] / r["compiled"] for r in runs if "in_loops" in r]
        if inside:
            found, share = _share(inside)
            yield Row(
                f"{what}, as auto trains it",
                target,
                f"{found} (compiled loops, one thread)",
                share < limit,
            )


def _share(runs: list[float]) -> tuple[str, float]:
    """The median share as text with its quartiles, and as a number."""
    middle = statistics.median(runs)
    if len(runs) < 4:
        return f"{middle:.1%}", middle
    low, _, high = statistics.quantiles(runs, method="inclusive")
    return f"{middle:.1%}, half of {len(runs)} processes {low:.1%} to {high:.1%}", middle


def _evaluation(sections: Results) -> Iterator[Row]:
    for workload, runs in sections.get("evaluation", {}).items():
        what, target = (
            f"{WORKLOADS[workload].title}: evaluation against plain torch, all cores",
            "never slower",
        )
        mine, other = (_middle(runs, who) for who in ("ours", "plain"))
        if mine is None or other is None:
            yield Row(what, target, _why(runs), None)
            continue
        found = f"{other / mine:.1f}x ({runs[0]['samples']} samples: {1e3 * mine:.0f} ms; {1e3 * other:.0f} ms)"
        yield Row(what, target, found, mine <= 1.03 * other)


def _server(sections: Results) -> Iterator[Row]:
    runs = [r for r in sections.get("server", {}).get("runs", []) if "seconds" in r]
    for method, name, factor in (
        ("fedavg", "weighted mean of the stack", 1.5),
        ("folded", "weighted mean, updates added up as they arrive", 2),
        ("fedlws", "FedLWS", 1.5),
        ("fedpake", "FedPake", 6),
    ):
        what, target = f"{name} on ResNet-18, K = 20", f"{factor:g}x the read limit"
        if not runs:
            yield Row(what, target, _why(sections.get("server", {}).get("runs", [])), None)
            continue
        times, limit = (
            statistics.median(r["seconds"][key] for r in runs) for key in (method, "read")
        )
        yield Row(
            what,
            target,
            f"{times / limit:.1f}x ({1e3 * times:.0f} ms; {1e3 * limit:.0f} ms)",
            times <= factor * limit,
        )


def _memory(sections: Results) -> Iterator[Row]:
    data = sections.get("memory", {})
    few, many = (_middle(data.get(count, []), "mb") for count in ("10", "100"))
    what, target = "server memory, FedAvg, K = 10 and 100", "one model + constant"
    if few is None or many is None:
        yield Row(what, target, _why(data.get("10", [])), None)
        return
    model = _middle(data["10"], "model_mb") or 0.0
    yield Row(
        what,
        target,
        f"{few:.0f} MB and {many:.0f} MB (a model: {model:.0f} MB; 90 stacked: {90 * model:.0f} MB)",
        many - few <= SLACK * model,
    )


def _scale(sections: Results) -> Iterator[Row]:
    data, target = sections.get("scale", {}), "rounds/s within 10 %, under 100 MB"
    if not data or "why" in data:
        yield Row(
            "a million clients", target, f"not measured: {data.get('why', 'it was not run')}", None
        )
        return
    for what, sides in data.items():
        small, large = (_middle(sides[side], "rate") or 0.0 for side in ("small", "million"))
        few, many = (_middle(sides[side], "mb") or 0.0 for side in ("small", "million"))
        found = f"{large / small:.0%} of {small:.0f} rounds/s; {many - few:.0f} MB more than the {few:.0f} MB of the small one"
        yield Row(
            f"a million clients, {what}", target, found, large >= 0.9 * small and many - few < 100
        )


def _foreign(sections: Results) -> Iterator[Row]:
    data = sections.get("foreign", {})
    alone, beside = (_middle(data.get(side, [])) for side in ("alone", "beside"))
    what, target = "2NN beside a foreign busy process", "at most 2.5x slower"
    if alone is None or beside is None:
        yield Row(what, target, _why(data.get("alone", [])), None)
        return
    yield Row(
        what,
        target,
        f"{beside / alone:.1f}x ({1e3 * alone:.0f} ms; {1e3 * beside:.0f} ms)",
        beside <= 2.5 * alone,
    )


SMALL_REGRET = 0.1
"""Share by which an executor that `auto` chose may be slower than the fastest one without a row on the page."""
IDLE = 0.2
"""Cores that other programs may keep busy where a target is one of an idle machine."""


def _federation(sections: Results) -> Iterator[Row]:
    data = sections.get("federation", {})
    runs = data.get("3 sites", [])
    mine, foreign, site = (_middle(runs, key) for key in ("round", "foreign", "site_mb"))
    at, away = (_middle(data.get(f"3 sites, round trip {ms} ms", [])) for ms in (0, 40))
    other = _middle(data.get("3 sites, Flower's deployment", []))
    what, why = "a round of 3 sites over real processes", _why(runs)
    if mine is None or foreign is None or site is None:
        yield Row(what, "at most 0.35 s, idle cores", why, None)
        return
    passed = mine <= 0.35 if foreign < IDLE else None
    yield Row(
        what,
        "at most 0.35 s, idle cores",
        f"{mine:.2f} s beside programs that kept {foreign:.1f} cores busy",
        passed,
    )
    if other is not None:
        yield Row(
            f"{what}, against Flower's deployment",
            "faster",
            f"{other / mine:.0f}x ({mine:.2f} s; {other:.1f} s)",
            mine < other,
        )
    if at is not None and away is not None:
        trips = (away - at) / 0.04
        found = (
            f"{trips:.1f}: " if foreign < IDLE else ""
        ) + f"{at:.2f} s at 0 ms; {away:.2f} s at 40 ms"
        yield Row(
            f"{what}: round trips more over a network",
            "2",
            found,
            trips <= 2 if foreign < IDLE else None,
        )
    yield Row("memory of a site", "350 MB", f"{site:.0f} MB", site <= 350)


def plain(measured: Results) -> str:
    """The target table of one machine for a terminal."""
    found = rows(measured)
    widths = [max(len(row[i]) for row in found) for i in range(2)]
    return "\n".join(
        f"{r.verdict:5s} {r.what:{widths[0]}s}  {r.target:{widths[1]}s}  {r.found}" for r in found
    )


def markdown(results: Results) -> str:
    """The page."""
    lines = [
        "# Benchmarks",
        "",
        "![Time of a round of FedAvg beside the alternatives, for four models](images/benchmarks.png)",
        "",
        "How fast is training, beside a plain PyTorch loop and other libraries? Ratios carry over to other machines, times less.",
        "`python benchmarks/targets.py --render --docs docs/benchmarks.md` makes this page.",
        "",
        *(_machine(measured) for measured in results.values()),
        "",
        "## Targets",
        "",
        *_targets({name: rows(measured) for name, measured in results.items()}),
        "- The read limit is the time to sum the stacked updates once. Server memory is what a run adds to a process with torch.",
    ]
    lines += ["", "## Rounds", "", *_rounds(results)]
    found = {cpu: m["sections"]["auto"] for cpu, m in results.items() if "auto" in m["sections"]}
    lines += ["", "## The choice of auto", ""] if found else []
    for cpu, section in found.items():
        lines += [f"### {cpu}", "", *_auto(section)]
    found = {
        cpu: m["sections"]["federation"]
        for cpu, m in results.items()
        if "federation" in m["sections"]
    }
    lines += ["", "## A federation over real processes", ""] if found else []
    for cpu, section in found.items():
        lines += [f"### {cpu}", "", *_deployed(section)]
    lines += ["", "## GPUs", "", *_on_devices(json.loads(GPU.read_text()))]
    return "\n".join([*lines, ""])


def _on_devices(found: Results) -> list[str]:
    """Milliseconds of a round on each device, and how many times as fast as the bare loop there."""
    names = list(
        dict.fromkeys(
            name
            for device in found.values()
            for load in device.values()
            for name in load["contenders"]
        )
    )
    loads = [load for device in found.values() for load in device.values()]
    gains = [load["contenders"]["auto"]["factor"] for load in loads]
    lines = [
        f"With `auto`, a round is {min(gains):.1f} to {max(gains):.1f} times as fast as a bare CUDA loop (`torch.optim.SGD`,",
        "samples on the device). Milliseconds and this factor by `make gpu`: one run of three rounds after two to warm up.",
    ]
    for device, loads in found.items():
        lines += [
            "",
            f"| {device} | " + " | ".join(names) + " |",
            "| :-- |" + " --: |" * len(names),
        ]
        for load in loads.values():
            cells = [load["contenders"].get(name) for name in names]
            shown = ["-" if c is None else f"{c['ms']:.0f} ({c['factor']:.1f}x)" for c in cells]
            lines.append(f"| {load['text']} | " + " | ".join(shown) + " |")
    return lines


def _deployed(section: Results) -> list[str]:
    """Round times of `unalike federation up` and of Flower's own deployment, all processes on this machine."""
    lines = [
        f"{section['when']} UTC, {section['repeat']} interleaved repetitions. {section.get('note', '')}".rstrip(),
        "FedAvg, digits, 4,810 parameters, an epoch at each site, TLS; all processes share the cores. Ours: rounds 2 to 20, with",
        "evaluation, gateway and signatures. Flower's: a process for each message; rounds 2 and 3, without evaluation and",
        "authentication of nodes. Busy: cores that other programs used.",
        "",
        "| | round, s | spread | busy | a site, MB | all processes, MB |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    for name, runs in section["data"].items():
        done = [r for r in runs if "round" in r]
        if not done:
            lines.append(f"| {name} | {_cell(_why(runs))} | | | | |")
            continue
        middle, foreign, peak, site = (
            _middle(done, key) for key in ("round", "foreign", "peak_mb", "site_mb")
        )
        spread = f"{min(r['least'] for r in done):.2f} - {max(r['most'] for r in done):.2f}"
        mb = "" if site is None else f"{site:.0f}"
        lines.append(
            f"| {name} | {middle:.2f} | {spread} | {max(foreign or 0.0, 0.0):.1f} | {mb} | {peak:.0f} |"
        )
    return lines


def _auto(section: Results) -> list[str]:
    """Round times of the executors and plain torch on networks that people bring, and the regret of `auto`."""
    lines = [
        f"{section['when']} UTC, in batches of 10. {section.get('note', '')}".rstrip(),
        f"Milliseconds of the fastest of {section['repeat']} rounds.",
        "Large: 10 clients x 200; small: 100 x 20; unequal: 20 with 10 to 300; of the ResNets a quarter of the samples.",
        "Regret of `auto`: time of the executor that it chooses over that of the fastest, less 1; by the rule for short runs, and",
        "as measured for long ones. Plain torch: one process with all threads, or two with one each.",
        "",
        "| network | clients | `loop` | `batched` | 2 workers | plain torch | rule: regret | long run: regret | plain / `auto` |",
        "| :-- | :-- | --: | --: | --: | --: | :-- | :-- | --: |",
    ]
    shown_cases = 0
    for row in section["data"]:
        seconds = row["seconds"]
        plain = min(s for name, s in seconds.items() if name.startswith("plain"))
        alone = min(
            s for name, s in seconds.items() if not name.startswith(("plain", "distributed"))
        )
        least = {"rule": alone, "measured": min(alone, seconds["distributed(workers=2)"])}
        regrets = {how: seconds[name] / least[how] - 1 for how, name in row["choices"].items()}
        if max(regrets.values()) < SMALL_REGRET:
            continue
        shown_cases += 1
        ours = [seconds.get(name) for name in ("loop", "batched", "distributed(workers=2)")]
        shown = [
            f"{1e3 * s:.0f}" if s and s >= 0.01 else f"{1e3 * s:.1f}" if s else "cannot"
            for s in (*ours, plain)
        ]
        choices = [f"`{name}`: {max(0, regrets[how]):.0%}" for how, name in row["choices"].items()]
        clients = f"{row['clients']}{', one core busy' if row['busy'] else ''}"
        of_plain = f"{plain / seconds[row['choices']['measured']]:.1f}x"
        lines.append(f"| {' | '.join([row['network'], clients, *shown, *choices, of_plain])} |")
    cases = len(section["data"])
    good = f"In {cases - shown_cases} of {cases} cases `auto` chose an executor within {SMALL_REGRET:.0%} of the fastest"
    return [f"{good}; the table has the others.", "", *lines]


def _machine(measured: Results) -> str:
    about, note = measured["machine"], measured.get("note", "")
    return f"- **{about['cpu']}**: {about['cores']} cores, torch {about['torch']}, Python {about['python']}. {note}".rstrip()


def _targets(found: dict[str, list[Row]]) -> Iterator[str]:
    """The target table: of each target what the newest machine found that has measured it, by name if it is not the newest."""
    newest = next(reversed(found), "")
    kept: dict[str, tuple[str, Row]] = {}
    for cpu, column in found.items():
        for row in column:
            if row.passed is not None or row.what not in kept:
                kept[row.what] = cpu, row
    passed = [row.passed for _, row in kept.values()]
    yield f"{passed.count(True)} of {len(passed)} targets are met, on the machine in brackets, or else on {newest}."
    yield "Those for [rounds](#rounds) that are met are not listed. Our fastest setting counts."
    yield ""
    yield "| | target | found |"
    yield "| :-- | :-- | :-- |"
    for what, (cpu, row) in kept.items():
        if row.of_rounds and row.passed:
            continue
        machine = "" if cpu == newest else f" ({cpu})"
        shown = row.found.partition(" (")[0] if row.passed else row.found
        yield f"| {what} | {row.target} | {row.verdict}: {_cell(shown)}{machine} |"
    yield ""
    for cpu, column in found.items():
        missed = [
            f"{row.what} ({row.found.partition(' ')[0].rstrip(',')})"
            for row in column
            if row.passed is False and kept[row.what][1].passed
        ]
        if missed:
            yield f"- **{cpu}** misses, too: {'; '.join(missed)}."


def _rounds(results: Results) -> list[str]:
    """How many times as fast as the bare loop each contender is on each workload."""
    measured = {
        work.text: (cpu, machine["sections"][name]["data"])
        for cpu, machine in results.items()
        for name, work in WORKLOADS.items()
        if name in machine["sections"]
    }  # of the last machine that has measured the workload
    contenders = dict.fromkeys(name for _, data in measured.values() for name in data)
    machines: dict[str, list[str]] = {}
    for text, (cpu, _) in measured.items():
        machines.setdefault(cpu, []).append(text.partition(" ")[0])
    places = "; ".join(f"{', '.join(names)} on {cpu}" for cpu, names in machines.items())
    lines = [
        "How many times as fast as the bare loop on one thread a round is (median of those after the first).",
        f"{places}.",
        "",
        f"| | {' | '.join(measured)} |",
        "| :-- |" + " --: |" * len(measured),
    ]
    for name in contenders:
        lines.append(
            f"| {name} | {' | '.join(_speed(data, name) for _, data in measured.values())} |"
        )
    return lines


def _speed(data: Results, name: str) -> str:
    """A contender's factor over the bare loop, whose row has milliseconds; the reason if it was not measured."""
    if name not in data:
        return "-"
    middle, bare = _middle(data[name]), _middle(data.get("bare loop, t1", []))
    if middle is None:
        return _cell(_why(data[name]))
    milliseconds = f"{1e3 * middle:.1f} ms"
    return f"{bare / middle:.2f}x" if bare and middle != bare else milliseconds


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
