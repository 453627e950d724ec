"""Where files lie, and functions that a user names."""

import pytest

from minionerec.core.errors import ConfigError
from minionerec.core.functions import function_at
from minionerec.core.paths import find_path, shipped_root, shown_path


def test_paths_are_the_users_own_before_shipped_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_path("data/demo/items.csv") == shipped_root() / "data/demo/items.csv"
    assert shown_path(shipped_root() / "data/demo/items.csv") == "data/demo/items.csv"
    (tmp_path / "data" / "demo").mkdir(parents=True)
    (tmp_path / "data" / "demo" / "items.csv").write_text("mine")
    assert find_path("data/demo/items.csv").read_text() == "mine"
    assert shown_path(tmp_path / "data") == "data"
    assert str(find_path("nowhere/x")) == "nowhere/x"
    assert str(find_path("minionerec/core")) == "minionerec/core"  # in a checkout, but not shipped under this name


def test_the_folder_of_data_has_a_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIONEREC_DATA", str(tmp_path))
    assert find_path("$MINIONEREC_DATA/Amazon/x.csv") == tmp_path / "Amazon" / "x.csv"
    monkeypatch.delenv("MINIONEREC_DATA")
    assert str(find_path("$MINIONEREC_DATA/x")) == "data/x"


def test_functions_by_their_dotted_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own_rewards.py").write_text("NUMBER = 3\n\ndef novelty():\n    return 4\n")
    assert function_at("my_own_rewards.novelty", "rewards")() == 4
    for dotted, message in (
        ("novelty", "rewards is 'novelty'; expected the dotted path of a function"),
        ("no_such_module.f", "there is no module 'no_such_module'"),
        ("my_own_rewards.absent", "the module 'my_own_rewards' has no 'absent'"),
        ("my_own_rewards.NUMBER", "which cannot be called: it is a int"),
    ):
        with pytest.raises(ConfigError, match=message):
            function_at(dotted, "rewards")
