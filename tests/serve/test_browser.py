"""The web page in a real browser: Chromium without a window, driven as a person would."""

import os
import shutil
import time
from urllib.parse import quote

import httpx
import pytest

from tests.serve.library import SCRIPT

selenium = pytest.importorskip("selenium.webdriver", reason="the browser tests need the package selenium")
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

pytestmark = pytest.mark.slow

DESKTOP, PHONE = (1280, 800), (390, 844)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no browser: install the Debian packages chromium and chromium-driver")
    options = selenium.ChromeOptions()
    options.binary_location = browser
    profile = tmp_path_factory.mktemp("profile")
    for one in ("headless=new", "disable-dev-shm-usage", f"user-data-dir={profile}", "window-size=1280,800"):
        options.add_argument(f"--{one}")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = selenium.Chrome(options, selenium.ChromeService(driver))
    yield made
    made.quit()


class Window:
    """A page of the browser, and what a person does with it."""

    def __init__(self, driver, url):
        self.driver, self.url = driver, url

    def open(self, path=""):
        self.driver.get(self.url + path)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def until(self, holds, seconds=10):
        deadline = time.monotonic() + seconds
        while not (found := holds()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return found

    def press(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()

    def hover(self, element):
        ActionChains(self.driver).move_to_element(element).perform()

    def ask(self, question):
        field = self.one("#q")
        field.clear()
        field.send_keys(question, Keys.ENTER)
        self.settled()

    def settled(self):
        """All answers are there, and the pictures that can be seen are drawn."""
        self.until(
            lambda: self.run(
                "return document.querySelector('main').ariaBusy === 'false' && !document.querySelector('.waiting')"
            )
        )
        seen = "return [...document.images].filter(i => i.getBoundingClientRect().top < innerHeight && i.offsetParent)"
        self.until(lambda: self.run(f"{seen}.every(i => i.complete)"))

    def shown(self):
        """The picture boxes on the first sheet."""
        return [
            tuple(round(float(one.get_attribute(name))) for name in ("x", "y"))
            for one in self.all(".paper")[0].find_elements(By.CSS_SELECTOR, "rect")
        ]

    def size(self, width, height, *, phone=False):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def focused(self):
        return self.driver.switch_to.active_element


@pytest.fixture
def window(chromium, running):
    one = Window(chromium, running.url)
    one.size(*DESKTOP)
    one.prefer("light")
    chromium.get_log("browser")
    yield one
    assert [entry["message"] for entry in chromium.get_log("browser")] == []


def hits(window):
    return [one.text.split("\n") for one in window.all("#hits button")]


def test_before_a_question_the_index_is_described(window, running):
    window.open()
    stats = httpx.get(f"{running.url}stats").json()
    window.until(lambda: window.one("#title").text == "Search 6 pages of 4 documents")
    tiles = window.one("#tiles").text
    assert f"{stats['ratio']:.3f}" in tiles
    assert f"{stats['k_eff']:.1f}" in tiles
    assert len(window.all("#worst li")) == 5
    assert "covering error" in window.one("#worst").text
    window.settled()
    assert window.focused().get_attribute("id") == "q"


def test_type_and_search(window):
    window.open()
    window.ask("how much did the battery ferry cost?")
    first = hits(window)[0]
    assert first[:2] == ["ferries.pdf", "page 1"]
    assert len(hits(window)) == 6
    assert window.one("#latency").text.endswith("ms")
    assert "6 pages found in" in window.run("return document.getElementById('live').textContent")
    assert window.one("#page").text.split() == ["ferries.pdf", "page", "1"]
    assert window.run("return [...document.querySelectorAll('.thumb img')][0].naturalWidth") > 100
    assert window.run("return document.querySelector('.paper img').naturalWidth") > 500
    assert window.shown()
    assert "q=how+much" in window.driver.current_url


def test_hovering_a_result_draws_its_evidence(window):
    window.open("?q=wind")
    window.settled()
    window.until(lambda: window.all("#hits button[aria-current] svg"))
    other = window.all("#hits button")[2]
    assert not other.find_elements(By.CSS_SELECTOR, "svg")
    window.hover(other)
    window.until(lambda: other.find_elements(By.CSS_SELECTOR, "svg rect"))
    window.hover(window.one("#q"))
    window.until(lambda: not other.find_elements(By.CSS_SELECTOR, "svg"))
    assert window.all("#hits button[aria-current] svg")


def test_tokens_show_their_own_evidence(window, running):
    window.open("?q=wind+speed+refund")
    window.settled()
    evidence = httpx.get(f"{running.url}evidence", params={"q": "wind speed refund", "page": "ferries.pdf#1"}).json()
    chips = window.all(".chip")
    assert [one.text for one in chips] == ["All", *(one["text"] for one in evidence["tokens"])]
    every = window.shown()
    assert len(every) == len(evidence["boxes"])
    window.hover(chips[1])
    window.until(lambda: len(window.shown()) == len(evidence["tokens"][0]["boxes"]))
    assert "“wind” chose facet" in window.one("#note").text
    window.hover(window.one("#page"))
    window.until(lambda: window.shown() == every)
    chips[3].click()
    window.hover(window.one("#page"))
    assert len(window.shown()) == len(evidence["tokens"][2]["boxes"])
    assert chips[3].get_attribute("aria-pressed") == "true"
    chips[3].click()
    window.hover(window.one("#page"))
    window.until(lambda: window.shown() == every)


def test_pointing_at_the_page_names_the_tokens(window, running):
    window.open("?q=wind+speed+refund")
    window.settled()
    evidence = httpx.get(f"{running.url}evidence", params={"q": "wind speed refund", "page": "ferries.pdf#1"}).json()
    left, top, right, bottom, _ = evidence["tokens"][0]["boxes"][0]
    x, y = (left + right) / 2, (top + bottom) / 2
    there = [
        one["text"]
        for one in evidence["tokens"]
        if any(box[0] <= x <= box[2] and box[1] <= y <= box[3] for box in one["boxes"])
    ]
    assert 0 < len(there) < len(evidence["tokens"])
    paper = window.run(
        "const r = document.querySelector('.paper').getBoundingClientRect(); return [r.x, r.y, r.width, r.height]"
    )
    actions = ActionChains(window.driver)
    actions.w3c_actions.pointer_action.move_to_location(int(paper[0] + x * paper[2]), int(paper[1] + y * paper[3]))
    actions.perform()
    window.until(lambda: [one.text for one in window.all(".chip.linked")] == there)
    window.hover(window.one("#page"))
    window.until(lambda: not window.all(".chip.linked"))


def test_the_switch_shows_full_vectors_and_both(window, running):
    window.open("?q=wind+speed")
    window.settled()
    evidence = httpx.get(f"{running.url}evidence", params={"q": "wind speed", "page": "ferries.pdf#1"}).json()
    assert [one.text.split("\n")[0] for one in window.all("figcaption")] == [f"Compressed, {evidence['k']} facets"]
    window.one("input[value=full]").click()
    window.settled()
    assert [one.text.split("\n")[0] for one in window.all("figcaption")] == [f"Full, {evidence['n']} vectors"]
    assert len(window.shown()) == len(evidence["full_boxes"])
    window.one("input[value=both]").click()
    window.settled()
    papers = [one.rect for one in window.all(".paper")]
    assert len(papers) == 2
    assert papers[0]["y"] == papers[1]["y"]
    assert papers[0]["x"] + papers[0]["width"] <= papers[1]["x"]
    window.all(".chip")[1].click()
    assert [len(one.find_elements(By.CSS_SELECTOR, "rect")) for one in window.all(".paper")] == [
        len(evidence["tokens"][0]["full"]["boxes"]),
        len(evidence["tokens"][0]["boxes"]),
    ]


def test_the_keyboard_is_enough(window):
    window.open()
    window.run("document.activeElement.blur()")
    window.press("/")
    assert window.focused().get_attribute("id") == "q"
    window.press("vegan soup", Keys.ENTER)
    window.until(lambda: hits(window))
    window.settled()
    window.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert window.focused() == window.all("#hits button")[1]
    assert window.focused().get_attribute("aria-current") == "true"
    outline = window.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "the focus can be seen"
    window.settled()
    window.press(Keys.ARROW_UP)
    window.settled()
    window.press(Keys.ENTER)
    assert window.focused().text == "All"
    window.press(Keys.ARROW_RIGHT)
    assert window.focused().get_attribute("aria-pressed") == "true"
    assert "chose facet" in window.one("#note").text
    window.press(Keys.ESCAPE)
    assert window.focused() == window.all("#hits button")[0]
    window.press(Keys.ESCAPE)
    assert window.focused().get_attribute("id") == "q"
    window.press("/")
    assert window.one("#q").get_attribute("value").endswith("/")


def test_links_lead_back_to_question_and_page(window):
    window.open("?q=holidays&page=ferries.pdf%231")
    window.settled()
    assert window.one("#q").get_attribute("value") == "holidays"
    assert window.one("#page").text.split() == ["ferries.pdf", "page", "2"]
    window.ask("vegan soup")
    assert hits(window)[0][0] == "100%25 & co #2?.pdf"
    window.driver.back()
    window.until(lambda: window.one("#q").get_attribute("value") == "holidays")
    window.settled()
    assert hits(window)[0][0] == "ferries.pdf"
    window.one("#home").click()
    window.until(lambda: window.run("return document.body.dataset.view") == "home")
    assert window.driver.current_url == window.url


def test_a_phone(window):
    window.size(*PHONE, phone=True)
    for path in ("", "?q=battery+ferry"):
        window.open(path)
        window.settled()
        assert window.run("return document.documentElement.scrollWidth") <= PHONE[0]
    assert not window.one("#stage").is_displayed()
    window.all("#hits button")[0].click()
    window.settled()
    assert window.one("#stage").is_displayed()
    stage = window.one("#stage").rect
    assert (stage["x"], stage["width"]) == (0, PHONE[0])
    assert window.run("return document.getElementById('stage').scrollWidth") <= PHONE[0]
    window.one("input[value=both]").click()
    window.settled()
    upper, lower = (one.rect for one in window.all(".paper"))
    assert upper["y"] + upper["height"] <= lower["y"]
    window.run("arguments[0].click()", window.one("#back"))
    assert not window.one("#stage").is_displayed()
    window.all("#hits button")[1].click()
    window.settled()
    window.driver.back()
    window.until(lambda: not window.one("#stage").is_displayed())
    assert hits(window)
    small = [one.text for one in window.all("button") if one.is_displayed() and one.rect["height"] < 30]
    assert small == [], "fingers need room"


def test_growing_a_phone_to_a_desk_shows_both_again(window):
    window.size(*PHONE, phone=True)
    window.open("?q=battery+ferry")
    window.settled()
    window.all("#hits button")[0].click()
    window.settled()
    window.size(*DESKTOP)
    assert window.one("#results").is_displayed()
    assert window.one("#stage").is_displayed()
    assert window.one("#results").rect["x"] + window.one("#results").rect["width"] <= window.one("#stage").rect["x"] + 1


def luminance(colour):
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_can_be_read(window, scheme):
    """Every text has a contrast of 4.5 with what lies under it, as WCAG asks."""
    window.prefer(scheme)
    window.open("?q=battery+ferry")
    window.settled()
    window.one("#about").click()
    window.until(lambda: window.all("#worst li"))
    texts = window.run(
        """
        const under = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
          if (c.startsWith('rgb(')) return c; } };
        const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
        return [...document.querySelectorAll('body *')]
          .filter((e) => own(e) && e.offsetParent && !e.closest('.hidden'))
          .map((e) => [e.textContent.trim(), getComputedStyle(e).color, under(e)]);
        """
    )
    assert len(texts) > 40
    page = luminance(window.run("return getComputedStyle(document.documentElement).backgroundColor"))
    assert (page < 0.05) == (scheme == "dark")
    for text, ink, paper in texts:
        lighter, darker = sorted((luminance(ink), luminance(paper)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (text, ink, paper)


def test_scripts_in_questions_and_documents_are_text(window):
    window.open(f"?q={quote('hostile words ' + SCRIPT)}")
    window.settled()
    assert hits(window)[0][0] == "hostile.pdf"
    window.until(lambda: window.shown())
    for number in range(len(window.all(".chip"))):
        window.run("document.querySelectorAll('.chip')[arguments[0]].click()", number)
    assert window.driver.title == f"hostile words {SCRIPT} – pagefacets"
    assert window.one("#q").get_attribute("value").endswith(SCRIPT)
    assert len(window.all("script")) == 1
    assert not [one for one in window.all("img") if "onerror" in one.get_attribute("outerHTML")]


def test_refusals_are_told(window):
    window.open()
    window.settled()
    window.run("document.getElementById('q').maxLength = 9999; document.getElementById('q').value = 'x'.repeat(1200)")
    window.press(Keys.ENTER)
    window.until(lambda: window.one("#problem").is_displayed())
    assert "1,200 characters" in window.one("#problem").text
    window.ask("ferry")
    assert not window.one("#problem").is_displayed()
    [entry] = window.driver.get_log("browser")
    assert "400" in entry["message"]


def test_patch_cells_lie_where_the_grid_has_them(window):
    """The overlay of a page of patches: a cell of a grid of 4 by 2, on a page twice as wide as high."""
    window.open()
    window.settled()
    found = window.driver.execute_async_script(
        """
        const done = arguments[arguments.length - 1];
        const found = {size: [200, 100], grid: [4, 2], boxes: [[0.25, 0.5, 0.5, 1, 0.7], [0, 0, 0.25, 0.5, 0.1]],
          full_boxes: null, tokens: [{boxes: [[0.25, 0.5, 0.5, 1, 1]], full: null}]};
        import("/static/evidence.js").then(({overlay, tokensAt}) => done([
          [...overlay(found, null, "compressed").children]
            .map((rect) => ["x", "y", "width", "height"].map((name) => Number(rect.getAttribute(name)))),
          tokensAt(found, 0.3, 0.6, "compressed"), tokensAt(found, 0.6, 0.6, "compressed")]));
        """
    )
    assert found == [[[0, 0, 250, 250], [250, 250, 250, 250]], [0], []]
