"""Tests that pages name as proof of a guarantee."""

import re

import pytest
from support.paths import ROOT


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/how-to/serving.md", "tests/hostile/README.md"])
def test_the_tests_that_a_page_names_are_there(page):
    named = set(re.findall(r"`(test_\w+)`", (ROOT / page).read_text(encoding="utf-8")))
    files = (ROOT / "tests").rglob("test_*.py")
    defined = {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)}
    assert named <= defined, named - defined
    assert len(named) > 15
