"""The explorer of a page: its data, and what a real browser makes of it, from the file, with a
keyboard, on a phone.
"""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from report_workshop import Page, csv_lines, sample_record, sample_rows, write_run

from evalsuite.report import write_report
from evalsuite.report.canvas import INK_COLOUR, MUTED_COLOUR, panels
from evalsuite.report.explorer import VERDICTS, packed
from evalsuite.report.page import inline_svg

AXE = Path(__file__).parents[1] / "vendor" / "axe.min.js"
LINES = "#explorer?step=bounds&variant=relu&workload=digits-cnn&row=digits-cnn/relu/bounds/"
PICTURED = f"{LINES}pgd_accuracy/eps=0.0625"
CURE = "needs a browser: apt-get install chromium chromium-driver, and pip install selenium"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        replace(row, reason="=1+1") if row.metric == "float_islands" and row.reason else row
        for row in sample_rows()
    ]
    made = write_run(tmp_path_factory.mktemp("explorer") / "run", rows, sample_record())
    home = made / "artefacts" / "digits-cnn" / "relu" / "1" / "bounds"
    home.mkdir(parents=True)
    # Eight by eight, once as it is and once a sixteenth brighter in one corner.
    clean = [[[(row + column) / 14 for column in range(8)] for row in range(8)]]
    kept = {
        "sample": 5,
        "eps": 0.0625,
        "label": 3,
        "clean_class": 3,
        "class": 8,
        "picture": [1, 8, 8],
        "clean": clean,
        "input": [[[0.0625, *clean[0][0][1:]], *clean[0][1:]]],
    }
    (home / "counterexamples.json").write_text(json.dumps([kept]))
    write_report(made)
    return made


@pytest.fixture(scope="module")
def compared(folder: Path) -> dict[tuple[str, ...], dict[str, str]]:
    rows = csv_lines(folder / "tables" / "comparison.csv")
    return {
        tuple(row[name] for name in ("workload", "step", "metric", "setting", "variant")): row
        for row in rows
    }


def listed(
    compared: dict[tuple[str, ...], dict[str, str]],
) -> dict[tuple[str, ...], dict[str, str]]:
    """Without what the section of `smt` shows as brackets alone: a lower end says nothing where
    questions are open.
    """
    return {key: row for key, row in compared.items() if key[2] != "verified_accuracy"}


def test_the_page_holds_every_measurement_with_its_seeds_and_verdict(
    folder: Path, compared: dict[tuple[str, ...], dict[str, str]]
) -> None:
    data = Page((folder / "report.html").read_text(encoding="utf-8")).data
    lines, cells = data["lines"], data["cells"]
    assert len(cells["line"]) == len(listed(compared))
    for i, at in enumerate(cells["line"]):
        key = (
            *(lines[name][at] for name in ("workload", "step", "metric", "setting")),
            cells["variant"][i],
        )
        values = [each for each in cells["values"][i] if each is not None]
        wanted = compared[key]
        assert len(values) == int(wanted["n"])
        assert not values or math.fsum(values) / len(values) == pytest.approx(
            float(wanted["mean"]), rel=1e-6
        )
        verdict = VERDICTS[cells["verdict"][i]]
        assert (verdict if verdict in ("better", "worse") else "") == wanted["better"]
        assert bool(cells["resolved"][i]) == (wanted["resolved"] == "True")


def test_the_page_holds_whole_numbers_whole(tmp_path: Path) -> None:
    rows = [
        replace(row, value=12_345_671.0 + row.seed) if row.metric == "float_islands" else row
        for row in sample_rows()
        if row.value is not None
    ]
    made = write_run(tmp_path / "run", rows, sample_record())
    write_report(made)
    data = Page((made / "report.html").read_text(encoding="utf-8")).data
    seeds = sorted({row.seed for row in rows if row.metric == "float_islands"})
    found = [
        data["cells"]["values"][i]
        for i, at in enumerate(data["cells"]["line"])
        if data["lines"]["metric"][at] == "float_islands"
    ]
    assert found
    assert all(each is None or each - 12_345_671 in seeds for values in found for each in values)


def test_the_page_holds_the_pictures_of_lines_and_nothing_is_asked_for_them(folder: Path) -> None:
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    (picture,) = page.data["pictures"]
    place = {
        "workload": "digits-cnn",
        "variant": "relu",
        "step": "bounds",
        "settings": ["eps=0.0625"],
    }
    assert place.items() <= picture.items()
    metrics = {"attacked_accuracy", "pgd_accuracy", "certified_accuracy"}
    assert metrics == {*picture["metrics"]}
    assert picture["text"].startswith(
        "relu, seed 1: test sample 5 is of class 3, and an input within ε = 0.0625 of it"
    )
    assert [src.partition(",")[0] for *_, src in picture["images"]] == ["data:image/png;base64"] * 3
    assert len({src for *_, src in picture["images"]}) == 3


def test_packed_data_are_the_same_bytes_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    first = packed({"a": [1, None, "ε"]})
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert packed({"a": [1, None, "ε"]}) == first


def test_a_figure_has_few_elements_takes_the_pages_colours_and_keeps_every_mark_in_its_place() -> (
    None
):
    with panels(1, 1, 2.0) as figure:
        axes = figure.grid[0, 0]
        axes.plot([0, 1, 2], [0, 4, 1], marker="o", color="#E69F00", label="one & <two>")
        axes.axhline(2, color=MUTED_COLOUR)
        axes.set_title("first\nsecond")
        axes.set_ylabel("turned", color=INK_COLOUR)
        axes.legend()
    svg = ElementTree.fromstring(inline_svg(figure.svg, "what it <shows>", "figure-x"))
    texts = {each.text: each for each in svg.iter("text")}
    assert svg.get("aria-label") == "what it <shows>"
    assert {"first", "second", "turned", "one & <two>"} <= texts.keys()
    assert str(texts["turned"].get("transform")).startswith("rotate(-90 ")
    assert float(texts["first"].get("y", 0)) < float(texts["second"].get("y", 0)) - 5
    assert texts["turned"].get("fill") == "currentColor"
    assert len(list(svg.iter("path"))) < 15
    assert len(list(ElementTree.fromstring(figure.svg).iter())) > 3 * len(list(svg.iter()))
    line = next(
        each
        for each in svg.iter("path")
        if (each.get("stroke"), each.get("fill")) == ("#e69f00", "none")
    )
    first, *steps = line.get("d", "").split("M")[1].split("l")
    points = [tuple(map(float, first.split()))]
    for step in steps:  # from point to point
        across, down = map(float, re.findall(r"-?[0-9.]+", step))
        points.append((points[-1][0] + across, points[-1][1] + down))
    marks = next(each.get("d", "") for each in svg.iter("path") if each.get("fill") == "#e69f00")
    # A circle begins at its lowest point.
    ends = [part.split("C")[0] for part in marks.split("M")[1:]]
    assert [float(each.split()[0]) for each in ends[:3]] == pytest.approx(
        [x for x, _ in points], abs=0.11
    )


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason=CURE)
    places = shutil.which("chromium"), shutil.which("chromedriver")
    if not all(places):
        pytest.skip(CURE)
    options = webdriver.ChromeOptions()
    options.binary_location = places[0]
    for each in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(places[1]))
    found.downloads = tmp_path_factory.mktemp("downloads")
    behaviour = {"behavior": "allow", "downloadPath": str(found.downloads)}
    found.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    yield found
    found.quit()


def until(ask: Callable[[], Any], seconds: float = 30) -> Any:
    end = time.monotonic() + seconds
    while not (found := ask()):
        assert time.monotonic() < end, f"nothing within {seconds} s"
        time.sleep(0.05)
    return found


def look(
    browser: Any, folder: Path, place: str = "", *, width: int = 1400, dark: bool = False
) -> Any:
    """The page, opened anew, when it is ready."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": [scheme]})
    browser.get("about:blank")
    browser.get((folder / "report.html").as_uri() + place)
    until(lambda: browser.execute_script("return 'ready' in document.documentElement.dataset"))
    return browser


def said(browser: Any, place: str) -> str:
    return str(
        browser.execute_script(
            "return document.getElementById(arguments[0]).textContent", f"explorer-{place}"
        )
    )


def click(browser: Any, selector: str) -> None:
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def enter(browser: Any, selector: str, text: str, event: str) -> None:
    script = "const box = document.querySelector(arguments[0]); box.value = arguments[1];"
    browser.execute_script(
        f"{script} box.dispatchEvent(new Event(arguments[2]))", selector, text, event
    )


def shown(browser: Any, selector: str, name: str) -> list[str]:
    """The values of an attribute of the elements that take up space."""
    script = (
        "return [...document.querySelectorAll(arguments[0])].filter((each) =>"
        " each.getClientRects().length)"
    )
    return list(
        browser.execute_script(
            f"{script}.map((each) => each.getAttribute(arguments[1]))", selector, name
        )
    )


def selection(browser: Any, name: str) -> str:
    path = browser.downloads / name
    path.unlink(missing_ok=True)
    click(browser, f"#explorer-{name.rpartition('.')[2]}")
    return str(until(lambda: path.is_file() and path.read_text(encoding="utf-8")))


@pytest.mark.slow
def test_filters_search_and_address_agree_and_the_csv_has_the_selection(
    browser: Any, folder: Path, compared: dict[tuple[str, ...], dict[str, str]]
) -> None:
    look(browser, folder)
    others = {key: row for key, row in listed(compared).items() if row["variant"] != "gelu"}
    assert said(browser, "count").startswith(f"{len(others)} of {len(others)} lines: ")
    click(browser, "#explorer-workload summary")
    until(
        lambda: browser.execute_script("return document.querySelector('#explorer-workload input')")
    )
    click(browser, "#explorer-workload input[value=digits-cnn]")
    click(browser, "#explorer-resolved")
    enter(browser, "#explorer-q", "FLOAT relu", "input")
    asked = {
        "workload": "digits-cnn",
        "resolved": "True",
        "metric": "float_islands",
        "variant": "relu",
    }
    wanted = {key: row for key, row in others.items() if asked.items() <= row.items()}
    assert wanted
    assert said(browser, "count").startswith(f"{len(wanted)} of {len(others)} lines: ")
    assert browser.execute_script(
        "return document.querySelectorAll('#explorer-rows circle.dot').length"
    ) == len(wanted)
    saved = {
        tuple(row[name] for name in ("workload", "step", "metric", "setting", "variant")): row
        for row in csv.DictReader(selection(browser, "selection.csv").splitlines())
    }
    assert saved.keys() == wanted.keys()
    for key, row in saved.items():
        for name in ("n", "mean", "low", "high", "n_pairs", "diff", "diff_low", "diff_high"):
            assert float(row[name]) == pytest.approx(
                float(wanted[key][name]), rel=1e-6, abs=1e-9
            ), (key, name)
    assert selection(browser, "selection.tex").count("\\\\\n") == len(wanted) + 1
    address = browser.current_url
    assert said(look(browser, folder, address[address.index("#") :]), "count").startswith(
        f"{len(wanted)} of "
    )
    click(browser, "#explorer-clear")
    assert said(browser, "count").startswith(f"{len(others)} of ")
    text = selection(browser, "selection.csv")
    assert "'=1+1" in text
    assert ",=1+1" not in text


@pytest.mark.slow
def test_lines_sort_by_standardised_difference_or_within_one_metric(
    browser: Any, folder: Path
) -> None:
    sizes = (
        "return [...document.querySelectorAll('#explorer-sort option')].map((each) =>"
        " each.disabled)"
    )
    assert browser is look(browser, folder, "#explorer?sort=standard&verdict=not+resolved")
    assert browser.execute_script(sizes) == [False, False, True, True]
    rows = list(csv.DictReader(selection(browser, "selection.csv").splitlines()))
    ratios = [
        abs(float(row["diff"])) / (float(row["diff_high"]) - float(row["diff"]))
        for row in rows
        if row["n_pairs"] == "3" and float(row["diff_high"]) > float(row["diff"])
    ]
    assert len(ratios) > 10
    assert ratios == sorted(ratios, reverse=True)
    look(browser, folder, "#explorer?metric=runtime+accuracy&sort=difference")
    assert browser.execute_script(sizes) == [False] * 4
    found = [
        float(row["diff"])
        for row in csv.DictReader(selection(browser, "selection.csv").splitlines())
    ]
    assert found == sorted(found, reverse=True)


@pytest.mark.slow
def test_a_line_shows_its_seeds_reason_and_files_and_has_an_address(
    browser: Any, folder: Path
) -> None:
    look(browser, folder, "#explorer?step=smt&variant=lambda-gelu&workload=digits-mlp")
    click(browser, "#explorer-rows button")
    text = said(browser, "told")
    assert "erf has no exact encoding in Z3" in text
    assert "logs/digits-mlp/lambda-gelu/2/smt.log" in text
    assert "artefacts/digits-mlp/lambda-gelu/2/smt/" in text
    address = browser.current_url
    click(browser, "#explorer-close")
    # The browser tells a dialog's end after the click that ended it.
    until(lambda: "row=" not in browser.current_url)
    look(browser, folder, address[address.index("#") :])
    assert browser.execute_script("return document.getElementById('explorer-drawer').open")
    assert said(browser, "title").endswith("lambda-gelu on digits-mlp")
    look(
        browser, folder, "#explorer?metric=accuracy&step=accuracy&variant=relu&workload=digits-mlp"
    )
    hover = "document.querySelector('#explorer-rows tr').dispatchEvent(new Event('mouseenter'))"
    browser.execute_script(hover)
    assert (
        browser.execute_script("return document.querySelectorAll('#explorer-rows .seed').length")
        == 3
    )


@pytest.mark.slow
def test_a_counterexample_is_shown_as_three_images_in_the_lines_of_its_radius_alone(
    browser: Any, folder: Path
) -> None:
    images = (
        "return [...document.querySelectorAll('#explorer-told img')].map((each) => [each.alt,"
        " each.naturalWidth])"
    )
    browser.get_log("browser")
    look(browser, folder, PICTURED, width=390)
    found = until(lambda: [each for each in browser.execute_script(images) if each[1]])
    assert [width for _, width in found] == [8, 8, 8]
    assert len({alt for alt, _ in found if len(alt) > 20}) == 3
    text = said(browser, "told").replace("\N{NO-BREAK SPACE}", " ")
    for caption in ("clean: class 3", "adversarial: class 8", "difference × 8, grey is none"):
        assert caption in text
    script = (
        "return [...document.querySelectorAll('#explorer-told figure')].map((each) =>"
        " each.getBoundingClientRect())"
    )
    boxes = browser.execute_script(script)
    assert all(0 < each["left"] < each["right"] < 390 and each["width"] > 60 for each in boxes)
    assert browser.get_log("browser") == []
    for other in ("pgd_accuracy/eps=0.03125", "bound_width/eps=0.0625, method=crown"):
        look(browser, folder, f"{LINES}{other}")
        assert browser.execute_script("return document.getElementById('explorer-drawer').open")
        assert browser.execute_script(images) == []


@pytest.mark.slow
def test_the_answer_of_a_variant_is_chosen_and_linked_and_links_lead_into_what_is_on_demand(
    browser: Any, folder: Path
) -> None:
    look(browser, folder, "#answer-relu")
    # The four lines, the strip plot and the table of the evidence.
    assert shown(browser, "[data-variant]", "data-variant") == ["relu"] * 3
    assert browser.find_element("css selector", "#answer-relu .matrix").is_displayed()
    enter(browser, "#choose select", "gelu-swap", "change")
    assert shown(browser, "[data-variant]", "data-variant") == ["gelu-swap"] * 3
    assert browser.current_url.endswith("#answer-gelu-swap")
    look(browser, folder, "#table-verdicts")
    assert (
        browser.execute_script(
            "return document.querySelectorAll('#table-verdicts tbody tr').length"
        )
        > 10
    )
    click(browser, "#section-bounds .words button, #section-quantize .words button")
    assert browser.execute_script("return document.querySelectorAll(':popover-open').length") == 1


@pytest.mark.slow
def test_nothing_is_asked_of_any_network_and_nothing_is_refused(browser: Any, folder: Path) -> None:
    browser.get_log("performance")
    browser.get_log("browser")
    look(browser, folder)
    click(browser, "#explorer-rows button")
    click(browser, "#explorer-csv")
    events = [json.loads(each["message"])["message"] for each in browser.get_log("performance")]
    asked = [
        each["params"]["request"]["url"]
        for each in events
        if each["method"] == "Network.requestWillBeSent"
    ]
    assert {url.partition(":")[0] for url in asked} <= {"file", "about", "blob"}
    assert len([url for url in asked if url.startswith("file:")]) == 1
    assert browser.get_log("browser") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "dark"), [("", False), ("", True), ("#explorer?resolved=1", True), (PICTURED, False)]
)
def test_axe_finds_nothing_that_keeps_people_from_using_it(
    browser: Any, folder: Path, dark: bool, place: str
) -> None:
    look(browser, folder, place, dark=dark)
    if place == PICTURED:
        until(lambda: shown(browser, "#explorer-drawer img", "alt"))
    else:
        for each in ("details[data-part] summary", "#explorer-metric summary"):
            click(browser, each)
    browser.execute_script(AXE.read_text(encoding="utf-8"))
    found = browser.execute_async_script(
        "axe.run().then((each) => arguments[arguments.length - 1](each.violations))"
    )
    told = [(each["id"], [node["html"][:160] for node in each["nodes"][:3]]) for each in found]
    assert told == []


@pytest.mark.slow
def test_a_phone_shows_it_without_scrolling_sideways(browser: Any, folder: Path) -> None:
    look(browser, folder, width=390)
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    script = """const texts = document.querySelectorAll('main p, main td, main th, main text');
        return [...texts].filter((each) => {
        const turn = each.getScreenCTM?.() ?? { a: 1, b: 0 };
        const size = Math.hypot(turn.a, turn.b) * parseFloat(getComputedStyle(each).fontSize);
        return each.getClientRects().length && size < 9;
    }).map((each) => each.textContent)"""
    assert browser.execute_script(script) == []
    # The first table has its columns side by side, and captions do not go on behind the edge where
    # tables do.
    script = "return document.querySelector('.box:has(.matrix)').scrollWidth"
    assert browser.execute_script(script) <= 390 - 2 * 16
    ends = (
        "[...document.querySelectorAll('caption')].map((each) =>"
        " each.getBoundingClientRect().right)"
    )
    assert browser.execute_script(f"return Math.max(...{ends})") <= 390


@pytest.mark.slow
@pytest.mark.parametrize(("width", "media"), [(1300, ""), (390, ""), (700, "print")])
def test_no_reason_in_the_first_table_is_cut_off(
    browser: Any, folder: Path, width: int, media: str
) -> None:
    look(browser, folder, width=width)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media})
    parts = (
        "[...document.querySelectorAll('.matrix .why')].filter((each) =>"
        " each.getClientRects().length)"
    )
    longest, cut = browser.execute_script(
        f"const parts = {parts}; return [Math.max(...parts.map((each) => each.textContent.length)),"
        " parts.filter((each) => each.scrollHeight > each.clientHeight + 1).map((each) =>"
        " each.textContent)]"
    )
    assert longest > 80
    assert cut == []


@pytest.mark.slow
def test_print_has_answer_and_sections_and_without_script_the_page_tells_of_the_tables(
    browser: Any, folder: Path
) -> None:
    look(browser, folder)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    found = shown(browser, "main > section", "id")
    assert "answer" in found
    assert any(each.startswith("section-") for each in found)
    assert not {"explorer", "provenance", "terms"} & {*found}
    # A tab of its own knows nothing of the print, and runs no script until it is closed.
    first = browser.current_window_handle
    browser.switch_to.new_window("tab")
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.get((folder / "report.html").as_uri())
    displayed = {
        name: browser.find_element("id", f"explorer-{name}").is_displayed()
        for name in ("without", "body")
    }
    told = browser.find_element("id", "explorer-without").text
    arms = [each.is_displayed() for each in browser.find_elements("css selector", "[data-variant]")]
    browser.close()
    browser.switch_to.window(first)
    assert displayed == {"without": True, "body": False}
    assert "tables/comparison.csv" in told
    # Without a choice of variants the page shows the first one's answer.
    assert arms[0]
    assert sum(arms) == 3
