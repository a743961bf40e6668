import pytest


@pytest.fixture
def visit(browser):
    """Open a page; afterwards check that there was no console error that the test does not allow."""
    pages, complaints = [], []

    def open_page(url, width=1280):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.goto(url)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert complaints == []
