"""Settings from hostile YAML and flags: one typed reading for both, and one line that says what is wrong where."""

import re
import time
from dataclasses import dataclass
from typing import Any

import pytest
from support.commands import command

from minionerec.core.errors import ConfigError, MinioneRecError, shown
from minionerec.models.prompts.wording import load_wording
from minionerec.pipeline.settings import StageConfig, parse_settings, setting
from minionerec.sid.embed.texts import tfidf_svd


@dataclass
class Cups(StageConfig):
    output: str = setting("cups", "where", required=True)
    n: int = setting(3, "how many")
    share: float = setting(0.5, "how full")
    names: list[str] = setting([], "whose")
    weights: dict[str, float] = setting({}, "weights")
    free: dict[str, Any] = setting({}, "anything")
    glaze: str = setting("blue", "colour", known=("blue", "white"))
    flag: bool = setting(True, "whether")


def reported(tmp_path, content=None, words=()) -> str:
    if content is not None:
        path = tmp_path / "c.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        words = ["--config", str(path), *words]
    start = time.monotonic()
    with pytest.raises(ConfigError) as error:
        parse_settings(Cups, words)
    assert time.monotonic() - start < 5
    message = str(error.value)
    assert "\n" not in message
    assert len(message.replace(str(tmp_path), "")) < 400, message
    return message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("output: 2021-02-30\n", r"line 1, column 9: '2021-02-30': day is out of range"),
        ("# \xe9".encode("latin-1"), r"c.yaml, line 1: byte 0xe9 is not UTF-8"),
        ("n: 1\nn: 2\n".encode("utf-16"), r"c.yaml, line 1: byte 0xff is not UTF-8"),
        ("n: " + "1" * 5000, "line 1, column 4: a number of too many digits"),
        ("n: " + "[" * 20_000, "nested more than 20 deep"),
        ("n: " + "{a: " * 5_000, "nested more than 20 deep"),
        ("n: 1\nn: 2\n", r"line 2, column 1: 'n' twice"),
        ("weights: {a: 1, a: 2}\n", r"line 1, column 17: 'a' twice"),
        ("weights: {1: 1, '1': 2}\n", "line 1, column 17: '1' twice"),
        ("names: &a [*a]\n", r"an alias \(\*name\)"),
        ("names: [&a [x, x], *a]\n", r"an alias \(\*name\)"),
        ("n: !!python/object/apply:os.system [ls]\n", "could not determine a constructor"),
        ("n: 1\n---\nn: 2\n", "line 2, column 1: but found another document"),
        ("output: [a]\n", r"output is \['a'\]; expected a text\."),
        ("output: {a: 1}\n", "output is {'a': 1}; expected a text"),
        ("output: true\n", "output is True; expected a text"),
        ("output: 1.10\n", "output is 1.1; expected a text; put it in quotes"),
        ('output: "a\\0b"\n', "output is 'a.x00b'; expected a text of one line"),
        ('output: "a\\nb"\n', "output is 'a.nb'; expected a text of one line"),
        ('output: "\\ud800"\n', "expected a text of one line"),
        ("n: 2.5\n", "n is 2.5; expected a whole number"),
        ("n: .nan\n", "n is nan; expected a whole number"),
        ("n: .inf\n", "n is inf; expected a whole number"),
        ("n: true\n", "n is True; expected a whole number"),
        ("n: [1]\n", r"n is \[1\]; expected a whole number"),
        ("n: null\n", "n is None; expected a whole number"),
        ("n: 1" + "0" * 20, "expected a whole number from -2,147,483,648 to 4,294,967,295"),
        ("share: 1e999\n", "share is .*inf.*; expected a number|share is '1e999'; expected a number"),
        ("share: .nan\n", "share is nan; expected a number"),
        ("flag: 1\n", "flag is 1; expected true or false"),
        ("names: [1, [2]]\n", r"names is \[2\]; expected a text"),
        ("names: a\n", r"names is 'a'; expected a list, such as \[a\]"),
        ("weights: {a: true}\n", "weights: a is True; expected a number"),
        ("weights: {[1]: 1}\n", "c.yaml: not valid YAML|weights has the name"),
        ('weights: {"a\\nb": 1}\n', "weights has the name 'a.nb'"),
        ("weights: [{a: 1}]\n", "weights has {'a': 1}; expected NAME=VALUE"),
        (f"glaze: {'x' * 5000}\n", r"unknown glaze 'xxx.*\(5,000 characters\)"),
        (f"n: {'x' * 5000}\n", r"n is 'xxx.*\(5,000 characters\)"),
        (f"{'x' * 900}: 1\n", r"unknown key 'xxx.*\(900 characters\)"),
        (f"names: {'x' * 5000}\n", r"names is 'xxx.*\(5,000 characters\)"),
        ("n: 1\n" + " " * (1 << 20), "larger than 1 MiB"),
    ],
    ids=lambda value: str(value)[:30] if not isinstance(value, bytes) else "bytes",
)
def test_yaml(tmp_path, content, message):
    assert re.search(message, reported(tmp_path, content))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--n", "2.0"], "--n is '2.0'; expected a whole number"),
        (["--n", "1_000"], "--n is '1_000'; expected a whole number"),
        (["--n", "٣"], "expected a whole number"),
        (["--n", "9" * 5000], r"--n is '999.*\(5,000 characters\)"),
        (["--share", "nan"], "--share is 'nan'; expected a number"),
        (["--share", "1e999"], "--share is '1e999'; expected a number"),
        (["--share", "0x10"], "expected a number"),
        (["--output", "a\0b"], "--output is 'a.x00b'; expected a text of one line"),
        (["--output", "a\udcff"], "expected a text of one line"),
        (["--free", "a=[" + "[" * 5000], "--free a is .*; expected a value"),
        (["--free", "a={b: &x [*x]}"], "--free a is .*; expected a value"),
        (["--weights", "=1"], "expected NAME=VALUE"),
        (["--config", "a\0b"], "cannot be read"),
        (["--config", "x" * 5000], "cannot be read|no such file"),
        (["--flag", "maybe"], "--flag is 'maybe'; expected true or false"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_flags(tmp_path, words, message):
    assert re.search(message, reported(tmp_path, words=words))


def test_config_paths_that_are_no_files(tmp_path):
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    assert "cannot be read (Is a directory)" in reported(tmp_path, words=["--config", str(tmp_path)])
    assert "cannot be read (Too many levels" in reported(tmp_path, words=["--config", str(tmp_path / "loop.yaml")])
    assert "no such file" in reported(tmp_path, words=["--config", str(tmp_path / "none.yaml")])


def test_files_and_flags_are_read_alike(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "n: 7\nshare: 1e-3\nnames: [a, '2']\nweights: {a: 2}\nfree: {x: [1]}\nflag: no\noutput: 2020-01-01\n"
    )
    numbers = ["--n", "7", "--share", "1e-3", "--weights", "a=2", "--flag", "no"]
    words = [*numbers, "--names", "a", "2", "--free", "x=[1]", "--output", "2020-01-01"]
    assert parse_settings(Cups, ["--config", str(path)]) == parse_settings(Cups, words)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("{history}", "{history:>10000000000}"), "{history} is given a format"),
        (("{history}", "{history!r}"), "{history} is given a format"),
        (("{history}", "{history.x}"), "unknown placeholder {history.x}"),
        (("name: compact", "name: [compact]"), "name is ['compact']; expected a text"),
        (("completion: '{sid}'", "completion: [1]"), "is [1]; expected a text"),
    ],
)
def test_wordings(tmp_path, change, message):
    text = load_wording("compact").to_yaml()
    assert change[0] in text
    (tmp_path / "w.yaml").write_text(text.replace(*change))
    with pytest.raises(ConfigError) as error:
        load_wording(tmp_path / "w.yaml")
    assert message in str(error.value)


def test_a_catalogue_of_one_word_has_no_vectors():
    for texts in (["tea"], ["tea", "tea"]):
        with pytest.raises(MinioneRecError, match="hold one word between them"):
            tfidf_svd(texts, 4, 0)


def test_messages_are_one_line_whatever_they_quote():
    error = MinioneRecError("a\nb\x00c\u2028d\ud800" + "x" * 10_000)
    assert str(error).startswith("a b\\x00c\\u2028d\\ud800xx")
    assert len(str(error)) < 2_100
    nested: list[Any] = []
    nested.append(nested)
    assert shown(nested) == "[[[...]]]"
    assert len(shown({"a": ["x" * 500] * 500})) < 200
    assert "too large" in shown(10**5000) or len(shown(10**5000)) < 200


def test_a_command_says_it_in_one_line_and_ends_with_status_2(tmp_path):
    (tmp_path / "c.yaml").write_text("start: 2021-02-30\n")
    done = command(tmp_path, "prepare-data", "--config", "c.yaml")
    assert "line 1, column 8" in done.reported
    assert (done.out, done.err.count("\n")) == ("", 1)
