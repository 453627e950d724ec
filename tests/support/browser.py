"""A real Chromium without a window, and what it did: Debian's packages chromium and chromium-driver."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
FLAGS += ("--disable-background-networking", "--disable-component-update", "--hide-scrollbars")
NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A driver of a fresh browser; the test is skipped, saying why, where there is none.

    Args:
        profile: Empty folder for what the browser keeps.
    """
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (the extra dev has it)")
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    driver_path = shutil.which("chromedriver")
    if browser is None or driver_path is None:
        pytest.skip("no browser: install Debian's packages chromium and chromium-driver")
    from selenium.webdriver.chrome.service import Service

    options = selenium.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=Service(driver_path))
    driver.set_page_load_timeout(30)
    driver.set_script_timeout(20)
    try:
        yield driver
    finally:
        driver.quit()


def set_screen(driver: Any, width: int, height: int, *, touch: bool = False, dark: bool = False) -> None:
    """Look at pages on a screen of this size, in CSS pixels, light or dark."""
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def complaints(driver: Any) -> list[str]:
    """What the browser's console holds since the last call: errors, refusals by a policy, warnings."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] != "INFO"]


def addresses(driver: Any) -> list[str]:
    """What the browser asked for since the last call, in order."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    return [params["request"]["url"] for params in sent]
