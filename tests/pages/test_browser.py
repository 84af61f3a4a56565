"""The report in a real browser: Debian's chromium and chromium-driver, where they are; nothing is downloaded."""

import json
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from run_folders import fake_run

from umbel.pages import page, views
from umbel.pages.load import Run, load

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install '.[dev]'")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no chromium and chromedriver here: apt-get install chromium chromium-driver")

EVIL = "<img src=x onerror=alert(1)>"
TREE = '[data-tree="t1"]'


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """FedAvg, a method with a dendrogram, and one without; 100 clients, 200 rounds, five true groups that overlap."""
    folder = tmp_path_factory.mktemp("runs")
    names = [EVIL, *[f"c{i:03d}" for i in range(1, 100)]]
    return [load(fake_run(folder / method, method, clients=100, rounds=200, groups=5, names=names, gain=0.01 * k))
            for k, method in enumerate(("fedavg", "pacfl", "cflgt"))]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One headless Chromium that writes down what it loads and complains of."""
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    driver.set_script_timeout(120)  # a busy machine may need more than selenium's 30 s to draw a whole page
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(page.write(runs))
    return file.as_uri()


@pytest.fixture
def opened(browser: Any, address: str) -> Any:
    """The page at 1280 x 800, in light colours, without mouse or memory of the last test."""
    look(browser, 1280, 800, "light")
    browser.get(address)
    return browser


def busy(browser: Any) -> float:
    """Seconds that the page has worked since the last blank one: its own time, whatever else this machine does."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def look(browser: Any, width: int, height: int, theme: str) -> None:
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
        "features": [{"name": "prefers-color-scheme", "value": theme}]})


def whole(browser: Any) -> int:
    """Scroll through the page so that every figure is drawn; return how many were."""
    return int(browser.execute_async_script("""
        const done = arguments[0], wait = () => new Promise(next => requestAnimationFrame(() => setTimeout(next, 10)));
        (async () => {
          for (let y = 0; y < document.documentElement.scrollHeight; y += 500) {
            scrollTo({top: y, behavior: "instant"});
            await wait();
          }
          done(document.querySelectorAll(".plot .main-svg:first-child").length);
        })()"""))


def shown(browser: Any) -> tuple[float, int, float]:
    """Cut, clusters and ARI as the page has them, and as it says them."""
    cut, clusters, ari, clusters_text, ari_text = browser.execute_script(f"""
        const figure = document.querySelector('{TREE}');
        const text = name => figure.querySelector(`[data-shows=${{name}}]`).textContent;
        return [figure.dataset.cut, figure.dataset.clusters, figure.dataset.ari, text("clusters"), text("ari")]""")
    assert clusters_text == clusters
    assert float(ari_text) == pytest.approx(float(ari), abs=0.0051)
    return float(cut), int(clusters), float(ari)


def agrees(browser: Any, run: Run) -> int:
    """Hold the page's clusters and ARI against Python's at the same cut."""
    cut, clusters, ari = shown(browser)
    tree = views.dendrogram(run)
    assert tree is not None
    labels, expected = views.cut_at(tree, run, cut)
    assert clusters == labels.max() + 1
    assert ari == pytest.approx(expected, abs=1e-12)
    return clusters


def slider(browser: Any) -> Any:
    cut = browser.find_element("css selector", f"{TREE} .cut")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", cut)
    return cut


def test_the_page_opens_quietly_and_quickly(opened: Any, address: str) -> None:  # first: nothing is cached yet
    """No word on the console, no request but for the file itself, open in under two seconds of work."""
    assert busy(opened) < 2
    assert opened.execute_script("return document.documentElement.dataset.ready") == "yes"
    assert whole(opened) >= 8
    assert opened.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}
    assert {url for url in asked if not url.startswith(("data:", "blob:"))} == {address}


def test_the_cut_stands_where_the_method_cut(opened: Any, runs: list[Run]) -> None:
    """At first the page shows the run's own clusters and ARI."""
    cut, clusters, ari = shown(opened)
    assert cut == runs[1].evidence.cut
    assert clusters == runs[1].info["clusters"]["count"]
    assert ari == pytest.approx(runs[1].info["clusters"]["ari"], abs=1e-12)


def test_a_cut_at_a_height_makes_the_merge_at_that_height(opened: Any, runs: list[Run]) -> None:
    """At every merge's height, and one last bit below it, the page has Python's clusters and ARI."""
    tree = views.dendrogram(runs[1])
    assert tree is not None
    places = [float(place) for height in tree.links[:, 2] for place in (np.nextafter(height, 0), height)]
    answers = opened.execute_script(f"""
        const figure = document.querySelector('{TREE}');
        return arguments[0].map(place => {{
          figure.dispatchEvent(new CustomEvent("cut", {{detail: place}}));
          return [Number(figure.dataset.clusters), Number(figure.dataset.ari)];
        }})""", places)
    for place, (clusters, ari) in zip(places, answers, strict=True):
        labels, expected = views.cut_at(tree, runs[1], place)
        assert clusters == labels.max() + 1
        assert ari == pytest.approx(expected, abs=1e-12)
    assert {clusters for clusters, _ in answers} == set(range(1, 101))


def test_dragging_the_cut_with_a_mouse_changes_clusters_and_ari(opened: Any, runs: list[Run]) -> None:
    """At every place it is dragged to, both are what Python computes."""
    counts = {agrees(opened, runs[1])}
    for by in (-60, -120, 40, 75, 60, 45):
        webdriver.ActionChains(opened, duration=0).drag_and_drop_by_offset(slider(opened), 0, by).perform()
        counts.add(agrees(opened, runs[1]))
    assert len(counts) >= 4
    opened.find_element("css selector", f"{TREE} [data-back]").click()
    assert shown(opened)[0] == runs[1].evidence.cut


def test_dragging_the_cut_with_a_finger(opened: Any, runs: list[Run]) -> None:
    """Touch moves it as the mouse does."""
    before = agrees(opened, runs[1])
    box = opened.execute_script("return arguments[0].getBoundingClientRect().toJSON()", slider(opened))
    x, y = box["left"] + box["width"] / 2, box["top"] + box["height"] / 2
    for kind, points in (("touchStart", [y]), ("touchMove", [y - 50]), ("touchMove", [y - 150]), ("touchEnd", [])):
        opened.execute_cdp_cmd("Input.dispatchTouchEvent", {
            "type": kind, "touchPoints": [{"x": x, "y": at} for at in points]})
    assert agrees(opened, runs[1]) < before


def test_the_cut_obeys_the_keyboard(opened: Any, runs: list[Run]) -> None:
    """An arrow is one merge more or less; Home, End, Page, Shift and Escape do what a slider's do."""
    cut, start = slider(opened), agrees(opened, runs[1])

    def press(*keys: str) -> int:
        cut.send_keys(*keys)
        return agrees(opened, runs[1])

    keys = webdriver.Keys
    assert press(keys.ARROW_UP) == start - 1
    assert press(keys.ARROW_RIGHT) == start - 2
    assert press(keys.ARROW_DOWN) == start - 1
    assert press(keys.ARROW_LEFT) == start
    assert press(keys.PAGE_DOWN) == start + 5
    assert press(keys.END) == 1
    assert press(keys.ARROW_UP) == 1
    assert press(keys.HOME) == 100
    assert press(keys.ARROW_DOWN) == 100
    assert press(keys.ESCAPE) == start
    before = shown(opened)[0]
    press(keys.SHIFT, keys.ARROW_UP)
    assert 0 < shown(opened)[0] - before < 0.1
    assert cut.get_attribute("aria-valuetext").startswith("cut at ")
    assert opened.switch_to.active_element == cut


@pytest.mark.parametrize("press", [lambda head: head.click(), lambda head: head.send_keys(webdriver.Keys.ENTER)],
                         ids=["mouse", "keyboard"])
def test_tables_sort(press: Callable[[Any], None], opened: Any) -> None:
    """By a head's first press largest first, then smallest first; what is missing stays last."""
    heads = opened.find_elements("css selector", "main > .scroll thead button")

    def column(k: int) -> list[str]:
        cells = opened.find_elements("css selector", f"main > .scroll tbody tr > :nth-child({k + 1})")
        return [cell.text for cell in cells]

    assert column(0) == ["fedavg", "pacfl", "cflgt"]
    press(heads[1])
    assert column(0) == ["cflgt", "pacfl", "fedavg"]
    press(heads[1])
    assert column(0) == ["fedavg", "pacfl", "cflgt"]
    press(heads[0])
    assert column(0) == ["cflgt", "fedavg", "pacfl"]
    assert opened.find_element("css selector", "main > .scroll th").get_attribute("aria-sort") == "ascending"
    assert column(5) == ["–"] * 3


def test_runs_are_chosen_by_keyboard(opened: Any) -> None:
    """Arrow keys go through the tabs and around; only the chosen run is shown, with its figures."""
    tabs = opened.find_elements("css selector", "[role=tab]")
    panels = opened.find_elements("css selector", "[role=tabpanel]")
    assert [panel.is_displayed() for panel in panels] == [False, True, False]
    tabs[1].send_keys(webdriver.Keys.ARROW_RIGHT)
    assert [panel.is_displayed() for panel in panels] == [False, False, True]
    assert opened.switch_to.active_element == tabs[2]
    assert "Gradient trajectories" in panels[2].text
    tabs[2].send_keys(webdriver.Keys.ARROW_RIGHT)
    assert [panel.is_displayed() for panel in panels] == [True, False, False]
    whole(opened)
    assert opened.get_log("browser") == []


def test_a_cell_of_the_matrix_names_its_two_clients(opened: Any, runs: list[Run]) -> None:
    """Hovering says who, and how far apart."""
    whole(opened)
    opened.execute_script("Plotly.Fx.hover(document.querySelector('[data-matrix]'), {xval: 1, yval: 0})")
    text = opened.find_element("css selector", "[data-matrix] .hovertext").text
    tree = views.dendrogram(runs[1])
    assert tree is not None
    a, b = (runs[1].clients[tree.clients[leaf]].name for leaf in tree.order[:2])
    assert text.startswith(f"{a} and {b}")
    assert "distance" in text


def test_light_and_dark(opened: Any, address: str) -> None:
    """The page follows the system, and its button; figures change with it."""
    look(opened, 1280, 800, "dark")
    opened.get(address)
    whole(opened)
    ink = """const colours = getComputedStyle(document.querySelector('.plot .xtick text')).fill;
        return colours + getComputedStyle(document.body).backgroundColor"""
    dark = opened.execute_script(ink)
    opened.find_element("id", "theme").send_keys(webdriver.Keys.ENTER)
    assert opened.execute_script("return document.documentElement.dataset.theme") == "light"
    assert opened.execute_script(ink) != dark


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")])
def test_nothing_sticks_out(width: int, theme: str, browser: Any, address: str) -> None:
    """At 1280 x 800 and at 400 x 800 the page scrolls in one direction only."""
    look(browser, width, 800, theme)
    browser.get(address)
    assert whole(browser) >= 8
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []


def test_names_stay_text(opened: Any) -> None:
    """A client's name that looks like markup is shown, not obeyed."""
    whole(opened)
    assert opened.find_elements("css selector", "img") == []
    cells = "return [...document.querySelectorAll('details tbody th')].map(cell => cell.textContent)"
    assert EVIL in opened.execute_script(cells)
