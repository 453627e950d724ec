"""The page of the server in a real browser: search, click, filter, keys, a phone, a server that is gone."""

import json
import os
import re
import subprocess
import time
import urllib.request
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from support.browser import addresses, chromium, complaints, set_screen
from support.checkpoints import save_checkpoint
from support.examples import sid_windows
from support.gaps import GAP
from support.paths import ROOT
from support.preloaded import python

from minionerec.data.corpus import Corpus
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare
from minionerec.sid.table import SidTable
from minionerec.training.catalogue.build import new_bundle

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("selenium", reason="selenium is not installed (the extra dev has it)")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

pytestmark = pytest.mark.end_to_end

NASTY = '<script>window.caught = 1</script> "Quoted" & \'Kettle\' <img src=x onerror="window.caught = 1">'
KEY = "a key for tests alone"


class Server:
    """The server as a user starts it, at one address through its lives."""

    def __init__(self, log, *words):
        self.log, self.words, self.port, self.process, self.url = log, words, "0", None, ""

    def start(self, key=None):
        environment = {**os.environ, **({"MINIONEREC_API_KEY": key} if key else {})}
        words = [python(), "-m", "minionerec", "serve", *map(str, self.words), "--port", self.port]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=ROOT
            )
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+:(\d+)", line)
        if not found:
            self.process.kill()
            raise AssertionError(f"the server said {line!r}: {self.log.read_text()}")
        self.url, self.port = found[0], found[1]

    def stop(self):
        if self.process is not None:
            self.process.terminate()
            self.process.communicate(timeout=30)

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        call = urllib.request.Request(f"{self.url}{path}", data, {"content-type": "application/json"})
        with urllib.request.urlopen(call, timeout=30) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """The demo shop with prices and stock, and a catalogue model that knows what followed what, not trained further."""
    folder = tmp_path_factory.mktemp("shop")
    items = pd.read_csv(ROOT / "data/demo/items.csv")
    items.loc[items["item_id"] == "P013", "title"] = NASTY
    items["price"] = np.arange(len(items)) % 50 + 0.5
    items["in_stock"] = np.where(np.arange(len(items)) % 3 == 0, "no", "yes")
    items.to_csv(folder / "items.csv", index=False)
    run_prepare(
        PrepareConfig(
            source="tables",
            items=str(folder / "items.csv"),
            interactions=str(ROOT / "data/demo/interactions.csv"),
            split="global_time",
            output=str(folder / "corpus"),
        )
    )
    corpus = Corpus.load(folder / "corpus")
    position = corpus.items["item_id"].str[1:].astype(int).to_numpy() - 1  # of P001, P002, …
    table = SidTable(
        np.stack([position // 50, position % 50 // 10, position % 10], axis=1), corpus.items["item_id"].tolist()
    )
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "seed": 42}
    windows = sid_windows(corpus, table, 0.0)[0]
    save_checkpoint(new_bundle(corpus, table, windows, **shape), folder / "catalogue")
    conditioned = new_bundle(corpus, table, windows, context=[replace(GAP, unit=86_400)], **shape)
    for tower in conditioned.model.towers:
        torch.nn.init.normal_(tower.context_states.shift)
    save_checkpoint(conditioned, folder / "conditioned")
    return folder


@pytest.fixture(scope="module")
def server(shop):
    server = Server(shop / "log", "--checkpoint", shop / "catalogue", "--corpus", shop / "corpus")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


class Page:
    """The page, as tests look at it and touch it."""

    def __init__(self, driver, server):
        self.driver, self.server = driver, server

    def open(self, fragment=""):
        self.driver.get("about:blank")  # so that another fragment is another visit
        self.driver.get(f"{self.server.url}/#{fragment}")
        self.settle()

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script, *given):
        return self.driver.execute_script(script, *given)

    def until(self, holds):
        WebDriverWait(self.driver, 15, poll_frequency=0.02).until(lambda _: holds())

    def settle(self):
        """Wait until the page shows the list and the explanation of what it is set to."""
        time.sleep(0.08)
        self.until(lambda: self.run(
            "return !document.querySelector('#list[aria-busy]') && document.querySelector('#took').textContent !== ''"
            " && !document.querySelector('.why.stale:not([hidden])')"
        ))  # fmt: skip

    def history(self):
        return self.run("return new URLSearchParams(location.hash.slice(1)).getAll('h')")

    def listed(self):
        return self.run("return [...document.querySelectorAll('#list > li')].map((row) => row.dataset.id)")

    def expected(self, **request):
        """Ids that the server recommends for what the page is set to, but for `request`."""
        asked = {"history": self.history(), "k": 10, "exclude_seen": True, **request}
        return [item["item_id"] for item in self.server.ask("/v1/recommend", asked)["items"]]

    def keys(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()

    def chord(self, held, key):
        ActionChains(self.driver).key_down(held).send_keys(key).key_up(held).perform()

    def focused(self):
        return self.driver.switch_to.active_element

    def add(self, query):
        """Search and take the first item found."""
        self.one("#query").send_keys(query)
        self.until(lambda: self.all("#found [aria-selected=true]"))
        self.one("#found [aria-selected=true]").click()
        self.settle()


@pytest.fixture
def page(driver, server):
    """The page of a new user; at the end the browser must have nothing to complain of, and asked nobody else."""
    set_screen(driver, 1200, 900)
    complaints(driver), addresses(driver)
    page = Page(driver, server)
    page.open()
    yield page
    assert complaints(driver) == []
    asked = addresses(driver)
    assert any(address.endswith("/v1/recommend") for address in asked)
    assert {address for address in asked if not address.startswith((f"{server.url}/", "about:"))} == set()


def test_a_history_is_searched_and_clicked_together_and_the_list_follows(page):
    newcomer = page.listed()
    assert newcomer == page.expected()
    page.add("cal pea sug")  # the beginnings of words
    assert page.history() == ["P003"]
    assert page.one("#history li .name").text == "Calettiworth Pearl Sugar Tongs"
    first = page.listed()
    assert first == page.expected() != newcomer
    page.all("#list .title")[2].click()
    page.settle()
    assert page.history() == ["P003", first[2]]
    assert page.listed() == page.expected()
    assert first[2] not in page.listed()  # the history is left out
    page.one("#exclude").click()
    page.settle()
    assert page.listed() == page.expected(exclude_seen=False)
    page.one("#history li:first-child [data-do=remove]").click()
    page.settle()
    assert page.history() == [first[2]]
    page.one("#clear").click()
    page.settle()
    assert page.history() == []
    assert page.listed() == newcomer


def test_a_row_says_what_the_server_says(page):
    page.open("h=P003&h=P001")
    answer = page.server.ask("/v1/recommend", {"history": ["P003", "P001"], "exclude_seen": True})
    for row, item in zip(page.all("#list > li"), answer["items"], strict=True):
        assert row.find_element(By.CLASS_NAME, "title").text.removesuffix("+").strip() == item["title"]
        codes = [chip.text for chip in row.find_elements(By.CSS_SELECTOR, ".sid .chip")]
        assert "".join(f"<{code}>" for code in codes) == item["sid"]
        shown = float(row.find_element(By.CLASS_NAME, "number").text.strip("<% "))
        assert shown == pytest.approx(100 * item["probability"], rel=0.06, abs=0.0051)
    assert page.one("#model").text.startswith(f"{answer['model']['name']} · {answer['model']['version']}")


def test_a_reason_says_what_would_be_without(page):
    page.open("h=P356&h=P275")  # often bought, so that something followed them
    asked = {"history": ["P356", "P275"], "exclude_seen": True}
    item_id, reasons = next(iter(page.server.ask("/v1/explain", asked)["reasons"].items()))
    row = page.one("#list > li")
    assert row.get_attribute("data-id") == item_id
    strongest = max((reason for reason in reasons if reason["kind"] == "history"), key=lambda reason: reason["change"])
    summary = row.find_element(By.TAG_NAME, "summary")
    assert strongest["title"] in summary.text
    without = float(re.search(r"([\d.]+) % without it", summary.text)[1])
    assert without == pytest.approx(100 * strongest["without"], rel=0.06, abs=0.0051)
    summary.click()
    reported = row.find_element(By.CLASS_NAME, "reasons").text
    counts = {reason["item_id"]: reason["times"] for reason in reasons if reason["kind"] == "counts"}
    assert sum(counts.values())
    for times in filter(None, counts.values()):
        assert f"next after it {times} time" in reported
    assert re.search(r"similarity by vectors \d+ %", reported)  # a checkpoint that records no source of them
    bears = [cell.text for cell in page.all("#history .bears")]
    assert len(bears) == 2 and all(re.fullmatch(r"[\u00d7\u00f7][\d.]+\+?", text) for text in bears)


def test_filters_change_the_list_at_once(page):
    stock = pd.read_csv(page.server.words[1].parent / "items.csv", index_col="item_id")
    page.open("h=P003")
    page.run("document.querySelector('#columns input[value=Light]').click()")
    page.settle()
    assert page.listed() == page.expected(where={"department": ["Light"]})
    assert set(stock.loc[page.listed(), "department"]) == {"Light"}
    page.one("#columns input[aria-label='Price to']").send_keys("3")
    page.settle()
    page.run("document.querySelectorAll('#columns input[type=radio]')[1].click()")  # in stock: yes
    page.settle()
    where = {"department": ["Light"], "price": {"at_most": 3}, "in_stock": True}
    left = page.listed()
    assert left == page.expected(where=where)
    assert 0 < len(left) < 10
    assert (stock.loc[left, "price"] <= 3).all() and set(stock.loc[left, "in_stock"]) == {"yes"}
    assert f"Only {len(left)} item" in page.one("#about-list").text
    page.run("for (const twist of document.querySelectorAll('#tree [aria-expanded=false] > .branch')) twist.click()")
    assert any("filtered out" in branch.text for branch in page.all("#tree .out"))
    page.driver.refresh()  # filters are in the address
    page.settle()
    assert page.listed() == left
    page.one("#reset").click()
    page.settle()
    assert page.listed() == page.expected()
    page.one("#k").send_keys(Keys.ARROW_LEFT * 3)
    page.settle()
    assert page.listed() == page.expected(k=7)


def test_the_tree_shows_the_probabilities_and_is_used_by_keys(page):
    page.open("h=P003&h=P001")
    tree = page.server.ask("/v1/explain", {"history": ["P003", "P001"], "exclude_seen": True})["tree"]
    page.one("#tree [tabindex='0']")  # one row alone is reached by the tab key
    assert len(page.all("#tree [tabindex='0']")) == 1
    first = page.one("#tree > li")
    assert first.find_element(By.CLASS_NAME, "chip").text == tree[0]["code"].strip("<>")
    shown = float(first.find_element(By.CLASS_NAME, "share").text.strip("% "))
    assert shown == pytest.approx(100 * tree[0]["probability"], rel=0.06, abs=0.0051)
    leaves = [leaf.text for leaf in page.all("#tree .leaf") if leaf.is_displayed()]
    titles = [row.text.removesuffix("+").strip() for row in page.all("#list .title")]
    assert set(leaves) == set(titles)
    page.run("arguments[0].focus()", first)
    page.keys(Keys.ARROW_RIGHT)
    assert page.focused().get_attribute("aria-level") == "2"
    page.keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert page.focused() == first
    page.keys(Keys.ARROW_LEFT)
    assert first.get_attribute("aria-expanded") == "false"
    assert (
        len(page.run("return [...document.querySelectorAll('#tree .leaf')].filter((leaf) => leaf.offsetParent)")) < 10
    )
    page.keys(Keys.END)
    assert page.focused() == page.all("#tree > li")[-1]
    page.keys(Keys.HOME, Keys.ENTER)
    assert first.get_attribute("aria-expanded") == "true"


def test_titles_stay_text(page):
    page.one("#query").send_keys("quoted kettle")
    page.until(lambda: page.all("#found [aria-selected=true]"))
    assert page.one("#found li").text == NASTY
    page.keys(Keys.ENTER)
    page.settle()
    assert page.history() == ["P013"]
    assert page.one("#history .name").text == NASTY
    page.one("#exclude").click()
    page.settle()
    page.run("document.querySelector('#columns input[value=\"Balcony and Beds\"]').click()")
    page.one("#columns input[aria-label='Price to']").send_keys("13")
    page.one("#k").send_keys(Keys.END)
    page.settle()
    assert NASTY in [title.text.removesuffix("+").strip() for title in page.all("#list .title")]
    assert page.run("return window.caught") is None
    assert page.run("return document.querySelectorAll('main script, main img, main [onerror]').length") == 0


def test_everything_can_be_done_by_keys(page):
    page.keys(Keys.TAB)
    assert page.focused().text == "Skip to the recommendations"
    page.keys(Keys.TAB, Keys.TAB)
    assert page.focused().get_attribute("id") == "query"
    page.keys("teapot")
    page.until(lambda: len(page.all("#found li")) > 2)
    page.keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_UP)
    chosen = page.one("#query").get_attribute("aria-activedescendant")
    second = page.all("#found li")[1]
    assert second.get_attribute("id") == chosen and second.get_attribute("aria-selected") == "true"
    title = second.text
    page.keys(Keys.ENTER)
    page.settle()
    assert page.one("#history .name").text == title
    page.keys("kettle")
    page.until(lambda: page.all("#found [aria-selected=true]"))
    page.keys(Keys.ENTER)
    page.settle()
    one, other = page.history()
    page.chord(Keys.SHIFT, Keys.TAB)
    assert page.focused().get_attribute("id") == "clear"
    page.keys(Keys.TAB, Keys.TAB)
    assert page.focused().get_attribute("data-do") == "remove"
    outline = page.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.chord(Keys.ALT, Keys.ARROW_DOWN)
    page.settle()
    assert page.history() == [other, one]
    page.keys(Keys.DELETE)
    page.settle()
    assert page.history() == [other]
    page.run("document.getElementById('skip').focus()")
    page.keys(Keys.ENTER, Keys.TAB)
    chosen = page.listed()[0]
    page.keys(Keys.ENTER)
    page.settle()
    assert page.history() == [other, chosen]
    assert page.focused().get_attribute("class") == "title"  # of the row that stands there now


def test_what_there_is_has_a_name_and_changes_are_reported(page):
    page.open("h=P003")
    controls = page.all("button, input, select, [role=treeitem]")
    nameless = [c.get_attribute("outerHTML") for c in controls if c.is_displayed() and not c.accessible_name]
    assert nameless == []
    branch = page.one("#tree > li")
    assert branch.accessible_name == ", ".join(
        branch.find_element(By.CLASS_NAME, part).text for part in ("chip", "share")
    )
    assert page.one("#status").get_attribute("aria-live") == "polite"
    first = page.one("#list .title").text.removesuffix("+").strip()
    assert page.one("#status").get_attribute("textContent") == f"10 recommendations. First: {first}."


def test_it_fits_a_phone_in_the_dark(page):
    set_screen(page.driver, 375, 750, touch=True, dark=True)
    page.open("h=P003&h=P013")
    assert page.run("return document.documentElement.scrollWidth") <= 375
    assert not page.one("#columns").is_displayed()  # filters are folded, so that the list is near
    page.one("#filters-box summary").click()
    assert page.one("#columns").is_displayed()
    assert page.run("return document.documentElement.scrollWidth") <= 375
    colours = page.run("const style = getComputedStyle(document.body); return [style.color, style.backgroundColor]")
    ink, paper = (sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 for colour in colours)
    assert ink - paper > 150


def test_an_older_answer_never_replaces_a_newer_one(page):
    page.run(
        """const real = window.fetch; let calls = 0;
        window.fetch = async (path, options) => {
          if (!String(path).includes("recommend") || calls++ > 0) return real(path, options);
          const answer = await real(path, {...options, signal: undefined});
          await new Promise((done) => setTimeout(done, 900));
          window.late = true;
          return answer;
        };"""
    )
    page.one("#query").send_keys("calettiworth pearl sug")
    page.until(lambda: page.all("#found [aria-selected=true]"))
    page.keys(Keys.ENTER)
    page.until(lambda: page.one("#busy").is_displayed())  # a quiet sign while it takes its time
    page.all("#list .title")[0].click()
    page.until(lambda: page.listed() == page.expected())
    newest = page.listed()
    page.until(lambda: page.run("return window.late"))
    page.settle()
    assert page.listed() == newest == page.expected()
    assert not page.one("#busy").is_displayed()


def test_a_view_is_shared_by_its_address(page):
    page.open("h=P003&h=nowhere&k=5&seen=1")
    assert page.listed() == page.expected(k=5, exclude_seen=False)
    assert [row.get_attribute("class") for row in page.all("#history li")] == ["", "unknown"]
    assert "nowhere" in page.one("#about-list").text
    page.run("location.hash = 'h=P001'")
    page.until(lambda: page.listed() == page.expected())
    assert page.history() == ["P001"]


def test_a_model_that_reads_request_features_is_given_them(page, shop):
    page.open('h=P003&context={"gap":"same"}')  # which this model does not read
    assert page.listed() == page.expected() and not page.one("#context").is_displayed()
    conditioned = Server(shop / "log", "--checkpoint", shop / "conditioned", "--corpus", shop / "corpus")
    conditioned.start()
    try:
        theirs = Page(page.driver, conditioned)
        theirs.open()
        assert not theirs.one("#context").is_displayed()  # before anything is chosen there is no context
        theirs.add("cal pea sug")
        lists = {"unknown": theirs.listed()}
        for context in ("later", "same"):
            theirs.one(f"#features [value={context}]").click()
            theirs.settle()
            lists[context] = theirs.listed()
            tree = conditioned.ask(
                "/v1/explain", {"history": ["P003"], "exclude_seen": True, "context": {"gap": context}}
            )["tree"]
            shown = float(theirs.one("#tree .share").text.strip("<% "))
            assert shown == pytest.approx(100 * tree[0]["probability"], rel=0.06, abs=0.0051)
        for context, found in lists.items():
            assert found == theirs.expected(context={"gap": context})
        assert len({tuple(found) for found in lists.values()}) == 3
        theirs.one("#features [value=unknown]").click()
        theirs.settle()
        assert theirs.listed() == lists["unknown"] and not theirs.one("#about-list").is_displayed()
        theirs.run("chosen.value = '2018-11-05T09:30'; chosen.dispatchEvent(new Event('change', { bubbles: true }))")
        theirs.settle()
        assert theirs.listed() == lists["later"] and "Gap later" in theirs.one("#about-list").text
        theirs.open("h=P003&chosen=2018-11-05T09:30")
        assert theirs.listed() == lists["later"] and theirs.one("#chosen").is_displayed()
        theirs.open('h=P003&context={"gap":"later"}')
        assert theirs.listed() == lists["later"] and theirs.one("#features [value=later]").is_selected()
        assert complaints(page.driver) == []
        own = (page.server.url, conditioned.url, "about:", "data:image/svg")  # the browser draws the field of a time
        assert {url for url in addresses(page.driver) if not url.startswith(own)} == set()
        page.open()
    finally:
        conditioned.stop()


def test_the_policy_is_strict_and_the_console_would_say_so(driver, server):
    page = Page(driver, server)
    page.open()
    complaints(driver)
    page.run(
        "const script = document.createElement('script'); script.textContent = 'window.caught = 1';"
        "document.body.append(script); document.body.setAttribute('style', 'color: red')"
    )
    assert page.run("return window.caught") is None
    assert sum("Content Security Policy" in complaint for complaint in complaints(driver)) == 2


def test_errors_are_one_message_and_what_stands_there_stays(driver, server):
    set_screen(driver, 1200, 900)
    page = Page(driver, server)
    driver.get("about:blank")
    driver.get(f'{server.url}/#h=P003&where={{"price":"cheap"}}')
    page.until(lambda: page.one("#notice").is_displayed())
    assert "where.price" in page.one("#notice").text
    page.one("#reset").click()
    page.settle()
    before = page.listed()
    assert not page.one("#notice").is_displayed() and len(before) == 10
    server.stop()
    page.one("#list .title").click()
    page.until(lambda: page.one("#notice").is_displayed())
    assert page.one("#notice span").text == "The server cannot be reached. The last answer is shown."
    assert page.listed() == before
    assert len(page.history()) == 2
    server.start(key=KEY)
    page.one("#notice button").click()
    page.until(lambda: page.all("#notice input"))
    assert "requires an API key" in page.one("#notice").text
    page.one("#notice input").send_keys("not the key", Keys.ENTER)
    page.until(lambda: page.run("return document.querySelector('#notice input').value") == "")
    assert page.focused() == page.one("#notice input")
    page.one("#notice input").send_keys(KEY, Keys.ENTER)
    page.until(lambda: not page.one("#notice").is_displayed())
    page.settle()
    assert page.listed() != before and len(page.listed()) == 10
    assert page.run("return [localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
