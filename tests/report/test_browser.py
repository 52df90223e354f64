"""report.html in a browser: nothing but the page is loaded, every plot is drawn, the keyboard reaches everything, and
what names and messages bring along neither runs nor shows up as anything but text."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from msgspec import structs

import bisect_cfg
from bisect_cfg.report.html import page as html_of
from bisect_cfg.report.html import write_report
from bisect_cfg.report.recorded import read
from tests.report import large, made
from tests.report.made import study

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REQUIRED = os.environ.get("BISECT_CFG_BROWSER") == "required"
"""Where a change lands these tests do not skip themselves."""

if REQUIRED:
    import playwright.sync_api as playwright
else:
    playwright = pytest.importorskip("playwright.sync_api", exc_type=ImportError)

pytestmark = [
    pytest.mark.training,  # a browser takes seconds to start
    pytest.mark.skipif(CHROMIUM is None and not REQUIRED, reason="no Chromium here: apt-get install chromium"),
]

IMAGE = '"><img src=x onerror=alert(1)>'
HOSTILE = ("</script><script>alert(1)</script>", f"rewards/{IMAGE}/mean", "'quoted' <b>name</b>", "{{ 7 * 7 }}")
"""Names of metrics: those of reward functions are the user's own."""

NARROW, WIDE = 400, 1400
A4 = 718
"""Pixels of a printed page between its margins."""

FITS = """() => [...document.querySelectorAll("[data-plot]")].every((place) =>
  Math.abs(place.querySelector("svg.main-svg").getBoundingClientRect().width - place.clientWidth) < 2)"""
"""Every plot is as wide as its place."""

FITS_ON_PAPER = """(page) => [...document.querySelectorAll("[data-plot]")].every((place) =>
  place.querySelector("svg.main-svg").getBoundingClientRect().width <= (place.closest(".grid") ? page / 2 : page))"""


@dataclass
class Opened:
    """A report in a browser.

    Attributes:
        page: Playwright's.
        said: what the console said, with errors and dialogs.
        asked: addresses that were asked for.
    """

    page: playwright.Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """A study with hostile names and a failure of that kind, looked at once for all tests."""
    folder = tmp_path_factory.mktemp('it is "quoted" & <b>bold') / "study"
    died = replace(made.DIED, message=f"SIGFPE {IMAGE} {HOSTILE[0]}", place=IMAGE)
    rows = tuple(structs.replace(row, reason=f"Is it {IMAGE}?") for row in made.ROWS)
    folder.mkdir(parents=True)
    report = replace(made.REPORT, rows=rows)
    study(folder, ("loss", "grad_norm", *HOSTILE), report=report, bad_run=made.run(folder, died))
    report = write_report(folder)
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        seen = Opened(browser.new_page(viewport={"width": WIDE, "height": 900}))
        seen.page.set_default_timeout(120_000)  # of a machine that has much else to do
        seen.page.on("console", lambda message: seen.said.append(message.text))
        seen.page.on("pageerror", lambda error: seen.said.append(str(error)))
        seen.page.on("dialog", lambda dialog: (seen.said.append(f"dialog {dialog.message}"), dialog.dismiss()))
        seen.page.on("request", lambda request: seen.asked.append(request.url))
        seen.page.goto(report.as_uri())
        seen.page.wait_for_selector("html[data-drawn]", state="attached")
        yield seen
        browser.close()


def test_all_plots_are_drawn_at_every_width_in_light_and_dark_and_on_paper(opened: Opened) -> None:
    page = opened.page
    plots = page.locator("[data-plot]").count()
    assert page.get_attribute("html", "data-drawn") == str(plots) == "6"
    assert page.locator("[data-plot] svg.main-svg").count() >= plots
    assert page.locator("[data-plot] .scatterlayer .trace").count() >= plots
    grounds = set()
    for width in (WIDE, NARROW):
        for scheme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.wait_for_function(FITS)
    # As it is between a narrower window and the plots drawn anew, however short that is.
    page.evaluate("document.querySelectorAll('svg.main-svg').forEach((one) => one.setAttribute('width', 553))")
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW
    assert len(grounds) == 2
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible() and page.locator("#answer").is_visible()
    page.set_viewport_size({"width": WIDE, "height": 900})
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function(FITS_ON_PAPER, arg=A4)  # where the window stays as wide as it was
    page.emulate_media(media="screen", color_scheme="light")
    page.set_viewport_size({"width": WIDE, "height": 900})
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.wait_for_function("document.querySelector('svg.main-svg').clientWidth > 400")  # as wide as before
    assert opened.said == [] and len(opened.asked) == 1


def test_the_keyboard_reaches_everything(opened: Opened) -> None:
    page = opened.page
    reached = set()
    page.locator("nav a").first.focus()
    for _ in range(200):
        reached.add(page.evaluate("document.activeElement.outerHTML.slice(0, 60)"))
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break
    wanted = page.locator("a, summary, [tabindex='0'], input").evaluate_all(
        "all => all.filter(one => one.checkVisibility()).map(one => one.outerHTML.slice(0, 60))"
    )
    assert len(wanted) > 12 and set(wanted) <= reached
    page.locator("#matrix button").first.focus()
    for number in (1, 2):
        page.keyboard.press("ArrowRight")
        assert page.locator("#told").inner_text().startswith(f"Trial {number}")
        assert page.get_attribute("[data-plot=trace-0]", "data-lit") == str(number)  # it stands out among the traces
    page.locator("details.numbers summary").first.focus()
    page.keyboard.press("Enter")
    numbers = page.locator("details.numbers").first.locator("tbody tr")
    numbers.first.wait_for()  # made when it is opened
    assert numbers.count() == 10  # as many as the longest of the runs has steps
    assert opened.said == []


def test_what_names_bring_along_is_text(opened: Opened) -> None:
    page = opened.page
    assert page.locator("img, b:has-text('name'), iframe").count() == 0
    words = page.locator("body").inner_text()
    assert all(name in words for name in HOSTILE) and IMAGE in words
    assert opened.said == [] and len(opened.asked) == 1


def test_a_large_study_is_drawn_whole(opened: Opened, tmp_path: Path) -> None:
    page = opened.page
    (tmp_path / "report.html").write_text(html_of(read(large.study(tmp_path, 60, 10, factors=12))))
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached")
    names = page.locator("[data-plot]").evaluate_all("all => all.map(one => one.dataset.plot)")
    assert names == ["suspicion", *(f"trace-{number}" for number in range(8))]
    assert page.get_attribute("html", "data-drawn") == str(len(names))
    assert opened.said == [] and len(opened.asked) == 2


def test_the_figures_of_a_notebook_are_drawn(opened: Opened, tmp_path: Path) -> None:
    report = bisect_cfg.load(large.study(tmp_path, 30, 6, factors=5))
    plots = (report.plot_matrix, report.plot_suspicion, report.plot_traces)
    parts = [plot().to_html(full_html=False, include_plotlyjs=plot is plots[0]) for plot in plots]
    (tmp_path / "cells.html").write_text("<meta charset=utf-8>" + "".join(parts))
    page = opened.page
    page.goto((tmp_path / "cells.html").as_uri())
    page.locator(".js-plotly-plot").nth(len(plots) - 1).locator(".trace").first.wait_for(state="attached")
    of = page.locator(".js-plotly-plot").evaluate_all(
        "all => all.map(one => one.querySelectorAll('.trace, .hm').length)"
    )
    assert len(of) == len(plots) and all(of)
    assert opened.said == []
