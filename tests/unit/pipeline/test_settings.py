"""Settings: one reading of values for files and flags, and checks that say what is wrong where."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import pytest

from minionerec.core.errors import ConfigError
from minionerec.core.values import convert
from minionerec.pipeline.settings import (
    StageConfig,
    description,
    input_kinds,
    parse_settings,
    setting,
)
from minionerec.pipeline.stages import STAGES


@dataclass
class Cups(StageConfig):
    kind: ClassVar[str] = "cups"

    output: str = setting("cups", "where they are put", required=True, affects_result=False)
    shop: str = setting("", "where they come from", input_kind="shop")
    others: dict[str, str] = setting({}, "shops to compare with", input_kind="any")
    steps: int = setting(3, "how many", least=1, resumable=True)
    share: float = setting(0.5, "how full", above=0, most=1)
    ks: list[int] = setting([1, 3], "cut-offs", least=1)
    weights: dict[str, float] = setting({"rule": 1.0}, "rewards with weights", known=("rule", "ndcg"), above=0)
    free: dict[str, Any] = setting({}, "anything")
    glaze: str = setting("blue", "its colour", known=("blue", "white"))
    stamp: str | None = setting(None, "text on the bottom")
    flag: bool = setting(True, "whether")


def yaml(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return str(path)


def test_flags_win_over_yaml_and_yaml_over_defaults(tmp_path):
    path = yaml(tmp_path, "steps: 5\nks: [2, 4]\nflag: false\nweights: {rule: 1, ndcg: 0.5}\n")
    found = parse_settings(Cups, ["--config", str(path)])
    assert (found.steps, found.ks, found.flag, found.weights) == (5, [2, 4], False, {"rule": 1.0, "ndcg": 0.5})
    words = [f"--config={path}", "--steps", "7", "--ks", "9", "--flag", "--weights", "ndcg=2", "rule", "--stamp", "x"]
    found = parse_settings(Cups, words)
    assert (found.steps, found.ks, found.flag, found.stamp) == (7, [9], True, "x")
    assert found.weights == {"ndcg": 2.0, "rule": 1.0}
    assert parse_settings(Cups, ["--flag", "false", "--stamp", "none"]) == Cups(flag=False)


def test_without_config_the_fallback_is_taken_and_reported(tmp_path, caplog):
    path = yaml(tmp_path, "steps: 8\n")
    with caplog.at_level("INFO", "minionerec"):
        assert parse_settings(Cups, ["--output", "b"], fallback=path) == Cups(output="b", steps=8)
    assert f"using the demo configuration, {path}" in caplog.text


@pytest.mark.parametrize(
    ("value", "hint", "wanted"),
    [
        ("1e-3", float, 1e-3),
        (2, float, 2.0),
        (2.0, int, 2),
        ("yes", bool, True),
        (None, str | None, None),
        ("null", int | None, None),
        (["a=1", "b=x"], dict[str, Any], {"a": 1, "b": "x"}),
        ({1: "a"}, dict[str, str], {"1": "a"}),
        (20180101, str, "20180101"),
        ([1, "2"], list[int], [1, 2]),
    ],
)
def test_values_take_the_type_of_their_setting(value, hint, wanted):
    found = convert(value, hint, "here")
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("stepz: 5\n", [], r"c.yaml: unknown key 'stepz'. Known keys: output, shop"),
        ("steps: five\n", [], r"c.yaml: steps is 'five'; expected a whole number\."),
        ("share: .inf\n", [], r"c.yaml: share is inf; expected a number\."),
        ("weights: rule=1\n", [], r"c.yaml: weights is 'rule=1'; expected a list"),
        ("- 1\n", [], "c.yaml: expected a mapping of settings, got list"),
        ("a: [1\n", [], "c.yaml: not valid YAML .*line 2"),
        ("", [], "c.yaml: is empty, expected a mapping of settings"),
        ("steps: 1\n", ["--stepz", "2"], r"^unrecognized arguments: --stepz 2\. Did you mean steps\? See --help\.$"),
        ("steps: 1\n", ["--steps", "x"], r"--steps is 'x'; expected a whole number\."),
        ("steps: 1\n", ["--steps"], r"--steps: expected one argument. See --help"),
        ("steps: 1\n", ["--weights", "rule=1", "rule=2"], r"--weights names 'rule' twice"),
        ("steps: 1\n", ["--others", "a"], r"--others has 'a'; expected NAME=VALUE"),
    ],
)
def test_bad_settings_name_path_value_and_remedy(tmp_path, text, words, message):
    with pytest.raises(ConfigError, match=message) as error:
        parse_settings(Cups, ["--config", yaml(tmp_path, text), *words])
    assert "\n" not in str(error.value)


def problems(tmp_path, text, *words):
    with pytest.raises(ConfigError) as error:
        parse_settings(Cups, ["--config", yaml(tmp_path, text), *words])
    return [line.removeprefix(f"{tmp_path}/") for line in error.value.lines()]


def test_all_problems_of_a_file_or_of_flags_are_named_at_once(tmp_path):
    known = "Known keys: output, shop, others, steps, share, ks, weights, free, glaze, stamp, flag."
    assert problems(tmp_path, "stepz: 5\nsteps: five\nshare: 2\nks: [0, 3, -1]\n") == [
        f"c.yaml: unknown key 'stepz'. {known} Did you mean steps?",
        "c.yaml: steps is 'five'; expected a whole number.",
        "share is 2.0; it must be above 0 and at most 1.",
        "ks is 0; it must be at least 1.",
        "ks is -1; it must be at least 1.",
    ]
    assert problems(tmp_path, "glaze: red\noutput: '~nobodys'\n", "--share", "2") == [
        "output is '~nobodys', but there is no such user. Fix the name, or write ./~nobodys",
        "share is 2.0; it must be above 0 and at most 1.",
        "unknown glaze 'red'; known: blue, white.",
    ]
    assert Cups(output="./~nobodys/cups").output == "./~nobodys/cups"
    assert problems(tmp_path, "flag: true\n", "--flag", "3", "--steps", "x") == [
        "--flag is '3'; expected true or false.",
        "--steps is 'x'; expected a whole number.",
    ]


@dataclass
class Sets(Cups):
    saucers: int = setting(0, "beside the cups", least=0)

    def contradictions(self):
        yield from super().contradictions()
        if self.saucers > self.steps:
            yield f"saucers is {self.saucers}, but steps {self.steps}; give fewer saucers."
        if self.stamp and not self.flag:
            raise ConfigError(f"stamp is {self.stamp!r}, but flag is false; leave stamp out.")


def test_all_contradictions_are_named_at_once_where_every_value_is_right():
    reported = ["saucers is 5, but steps 3; give fewer saucers.", "stamp is 'x', but flag is false; leave stamp out."]
    with pytest.raises(ConfigError) as error:
        Sets(saucers=5, stamp="x", flag=False)
    assert error.value.lines() == reported and str(error.value) == " ".join(reported)
    with pytest.raises(ConfigError, match=r"^steps is 0; it must be at least 1\.$"):
        Sets(saucers=5, steps=0)


def test_missing_config_file(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.yaml: no such file"):
        parse_settings(Cups, ["--config", "nowhere.yaml"])
    with pytest.raises(ConfigError, match="--config: expected one argument"):
        parse_settings(Cups, ["--config"])


def test_help_shows_defaults_and_choices_once(capsys):
    with pytest.raises(SystemExit):
        parse_settings(Cups, ["--help"], program="minionerec cups", summary="Make cups.")
    reported = " ".join(capsys.readouterr().out.split())
    assert "usage: minionerec cups" in reported
    assert "--no_flag" not in reported
    assert "whether (default: true)" in reported
    assert "rewards with weights; one of rule, ndcg (default: rule=1.0)" in reported
    assert "its colour; one of blue, white (default: blue)" in reported


def test_a_description_says_what_decides_what_is_read_and_what_may_grow(tmp_path):
    (tmp_path / "shop").mkdir()
    config = Cups(shop=str(tmp_path / "shop"), others={"a": "x", "b": "y"})
    deciding = {"steps", "share", "ks", "weights", "free", "glaze", "stamp", "flag"}
    assert set(config.deciding()) == deciding
    assert {name: str(path) for name, path in config.local().inputs().items()} == {
        "shop": str(tmp_path / "shop"),
        "others a": "x",
        "others b": "y",
    }
    assert input_kinds(config) == {"shop": "shop", "others a": "any", "others b": "any"}
    assert Cups().ks is not Cups().ks


@dataclass
class Trays(StageConfig):
    output: str = setting("trays", "where they are put", affects_result=False)
    fired: bool = setting(False, "whether it was in the kiln")
    degrees: int = setting(900, "how hot", least=1, requires="fired")
    glazes: list[str] = setting(["blue"], "its colours")
    pattern: str = setting("", "of what", input_kind="any")
    scale: float = setting(1.0, "size of the pattern", requires="pattern")


def test_what_belongs_to_another_setting_decides_only_where_it_is_used():
    plain = {"fired": False, "glazes": ["blue"]}
    assert Trays().deciding() == plain
    assert Trays(fired=True).deciding() == {**plain, "fired": True, "degrees": 900}
    assert Trays(fired=True, degrees=1000).deciding() == {**plain, "fired": True, "degrees": 1000}
    assert Trays(pattern="p.png").deciding() == {**plain, "scale": 1.0}


def test_a_setting_of_another_that_is_not_used_is_refused():
    with pytest.raises(ConfigError, match=r"^degrees is 1000, but fired is false; give --fired true, or leave"):
        Trays(degrees=1000)
    with pytest.raises(ConfigError, match=r"^scale is 2\.0, but pattern is empty; give --pattern, or leave it out"):
        Trays(scale=2.0)
    Trays(degrees=900, scale=1.0)


@dataclass
class Homes(Cups):
    root: str | None = setting(None, "a folder", path=True)
    entries: dict[str, Any] = setting({}, "paths among other texts", path=True)


def test_homes_of_users_in_paths_and_in_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "c.yaml").write_text(
        "output: ~/cups\nshop: ~\nothers: {a: ~/a, b: b~}\nroot: ~/root\nstamp: ~/stamp\nfree: {a: ~/a}\n"
        "entries: {x: ~/x, y: {sids: ~/y, note: ~3 % better}, z: [~/z]}\n".replace("shop: ~\n", "shop: '~'\n")
    )
    found = parse_settings(Homes, ["--config=~/c.yaml"])
    home = str(tmp_path)
    assert (found.output, found.shop, found.root) == (f"{home}/cups", home, f"{home}/root")
    assert found.others == {"a": f"{home}/a", "b": "b~"}
    assert (found.stamp, found.free) == ("~/stamp", {"a": "~/a"})
    assert found.entries == {"x": f"{home}/x", "y": {"sids": f"{home}/y", "note": "~3 % better"}, "z": [f"{home}/z"]}


@pytest.mark.parametrize("stage", sorted(STAGES))
def test_no_setting_of_a_stage_that_says_it_is_a_path_is_left_out(stage):
    words = ("directory", "folder", "path of", "file ", "file,", ".npy", "the output of")
    for each in fields(STAGES[stage].config_class()):
        reported = description(each)
        if each.type in ("str", str, "str | None", str | None) and any(word in reported.help for word in words):
            known = reported.input_kind or reported.writes or reported.path or each.name == "output" or reported.known
            assert known or "dotted path" in reported.help or "file names" in reported.help, (
                stage,
                each.name,
                reported.help,
            )


def test_unknown_flags_are_named_with_everything_else_that_is_wrong(tmp_path):
    words = ["--config", yaml(tmp_path, "stepz: 3\n"), "--epochs", "many", "--seed", "-1", "--lora", "2"]
    with pytest.raises(ConfigError) as error:
        parse_settings(STAGES["sft"].config_class(), words)
    unknown, key, epochs, seed = error.value.lines()
    assert unknown.startswith("unrecognized arguments: --lora 2.") and "unknown key 'stepz'" in key
    assert epochs.startswith("--epochs is 'many'") and seed.startswith("seed is -1")
