"""The report in a browser without a network."""

import pandas as pd
import pytest

from unalike.reporting import joined_page, render, write_text
from unalike.statistics.ranks import ranks

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(content, tmp_path_factory):
    return write_text(render(content), tmp_path_factory.mktemp("report") / "report.html").as_uri()


@pytest.fixture
def visit(browser, report):
    """Open the report; afterwards check that there was no console error and no network request."""
    pages, complaints, requests = [], [], []

    def open_page(width=1280, address=report, **options):
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        page.on(
            "console",
            lambda message: complaints.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        for plot in page.locator(".plot:not([hidden])").all():
            plot.locator("svg.main-svg").first.wait_for()
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_first_screen_shows_the_answer_and_its_key_facts_and_folds_the_rest(visit, content):
    page = visit()
    verdict = page.locator(".verdict")
    assert verdict.inner_text() == content.decision.answer
    values = page.locator("#which > .facts b")
    assert values.all_inner_texts() == [fact.value for fact in content.decision.key_facts]
    last = values.last.bounding_box()
    assert last["y"] + last["height"] < page.viewport_size["height"]
    # the values of all facts stand below each other
    assert len({value.bounding_box()["x"] for value in values.all()}) == 1
    folded = page.locator("#which > .more")
    assert folded.count() > 1 and not any(one.get_attribute("open") for one in folded.all())
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details.more:not([open])").count() == 0


def test_page_every_view_draws_its_chart(visit):
    page = visit()
    for panel in page.locator(".panel").all():
        for label in panel.locator(".views label").all():
            label.click()
            assert panel.locator(".plot:visible svg.main-svg").count() > 0
        box = panel.locator(".plot:visible").bounding_box()
        assert box["width"] > 500 and box["height"] > 100


def test_legend_click_hides_method_and_lists_only_drawn_methods(visit):
    page = visit()
    drawn = "document.querySelectorAll('#plot-curves-0 .scatterlayer .trace').length"
    before = page.evaluate(drawn)
    only_personal = page.locator("#panel-curves .legend button", has_text="local_only")
    assert only_personal.is_visible()
    page.locator("#panel-curves label", has_text="Accuracy, shared model").click()
    assert not only_personal.is_visible()
    page.locator("#panel-curves label", has_text="Accuracy, models that clients use").click()
    page.locator("#panel-curves .legend button", has_text="scaffold").click()
    assert page.evaluate(drawn) < before


def test_table_heading_click_sorts_in_both_directions(visit):
    page = visit()
    table = page.locator("#which table").first
    heading = table.locator("thead th").nth(2)
    column = "cells => cells.map(cell => Number(cell.dataset.value))"
    heading.locator("button").click()
    down = table.locator("tbody td:nth-child(3)").evaluate_all(column)
    assert down == sorted(down, reverse=True) and heading.get_attribute("aria-sort") == "descending"
    heading.locator("button").click()
    assert table.locator("tbody td:nth-child(3)").evaluate_all(column) == down[::-1]


def test_command_button_copies_the_command(visit, content):
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    page.locator("[data-copy]").click()
    page.get_by_role("status").get_by_text("Command copied").wait_for(state="attached")
    assert page.evaluate("navigator.clipboard.readText()") == content.command


def test_page_on_a_phone_does_not_scroll_sideways(visit):
    page = visit(width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_charts_follow_the_color_scheme_and_print_light(visit):
    expect = pytest.importorskip("playwright.sync_api").expect
    page = visit(color_scheme="dark")
    number = page.locator("#plot-curves-0 .xtick text").first
    light = "rgb(31, 39, 51)"
    expect(number).not_to_have_css("fill", light)
    page.emulate_media(color_scheme="light")
    expect(number).to_have_css("fill", light)
    page.emulate_media(color_scheme="dark")
    expect(number).not_to_have_css("fill", light)
    page.emulate_media(media="print")
    expect(number).to_have_css("fill", light)


def test_charts_fit_the_paper_when_printed_and_are_restored(visit):
    page = visit()
    width = "Number(document.querySelector('#plot-curves-0 svg').getAttribute('width'))"
    on_screen = page.evaluate(width)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(width) == 620
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(width) == on_screen


@pytest.fixture(scope="module")
def several(simulate, tmp_path_factory):
    contents = [simulate(methods=6, rounds=5, seeds=n) for n in (3, 4)]
    scores = pd.DataFrame(
        [[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]] * 2, ["mild", "severe"], contents[0].labels
    )
    content = joined_page.JoinedContent(
        "Two partitions",
        [("mild", contents[0]), ("severe", contents[1])],
        "AB",
        [("partition", ["mild", "severe"])],
        [],
        (scores, ranks(scores)),
    )
    return write_text(
        joined_page.render(content), tmp_path_factory.mktemp("joined") / "joined_page.html"
    ).as_uri()


def test_joined_page_every_view_draws_its_chart(visit, several):
    page = visit(address=several)
    kinds = [f"{kind}-{i}" for i in (0, 1) for kind in ("differences", "curves", "clients")]
    panels = page.locator(".panel").all()
    assert [panel.get_attribute("id") for panel in panels] == [
        f"panel-{name}" for name in ("over", *kinds)
    ]
    for panel in panels:
        for label in panel.locator(".views label").all():
            label.click()
            assert panel.locator(".plot:visible svg.main-svg").count() > 0
        box = panel.locator(".plot:visible").bounding_box()
        assert box["width"] > 500 and box["height"] > 100
    assert "all partitions of one study" in page.locator("#joined").inner_text()


def test_rank_diagram_on_a_narrow_screen_becomes_a_list(visit, several):
    """Both layouts show every method inside the figure, with its line and its marker."""
    expect = pytest.importorskip("playwright.sync_api").expect
    page = visit(address=several)
    names = ["fedavg", "fedprox(mu=0.1)", "fedavg + lws", "fedmix", "scaffold", "ditto"]
    plot = page.locator("#plot-over-0")
    assert "No difference shown within: " in plot.get_attribute("aria-label")
    wide = plot.bounding_box()["height"]
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        expect(plot).to_have_attribute(
            "data-drawn", "data-over-0-narrow" if width == 390 else "data-over-0"
        )
        expect(page.locator("html")).to_have_js_property(
            "scrollWidth", width
        )  # Plotly follows a little later
        written = plot.locator(".annotation-text").all_text_contents()
        assert all(any(text.startswith(name) for text in written) for name in names)
        frame = plot.bounding_box()
        for text in plot.locator(".annotation-text").all():
            box = text.bounding_box()
            assert box["x"] >= frame["x"] and box["x"] + box["width"] <= frame["x"] + frame["width"]
        assert plot.locator(".point").count() >= len(names)
    assert frame["height"] == wide


def test_hostile_names_execute_no_script(visit, simulate, tmp_path):
    hostile = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    content = simulate(methods=4, rounds=10, hostile=hostile)
    page = visit(address=write_text(render(content), tmp_path / "hostile.html").as_uri())
    assert page.title() == content.title
