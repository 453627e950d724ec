"""Configuration, artefacts and errors."""

import json
from dataclasses import dataclass, field

import pytest

from minionerec.core.artefacts import (
    fingerprint,
    is_current,
    read_json,
    read_manifest,
    require_writable,
    verify_files,
    write_artefact,
    write_text_atomic,
)
from minionerec.core.config import parse_config, run_command
from minionerec.core.errors import ArtefactError, ConfigError, DataError


@dataclass
class Settings:
    output: str = field(default="a", metadata={"help": "where"})
    steps: int = field(default=3, metadata={"help": "how many"})
    ks: list[int] = field(default_factory=lambda: [1, 3], metadata={"help": "cut-offs"})
    flag: bool = field(default=True, metadata={"help": "whether"})


def yaml(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return str(path)


def test_flags_win_over_yaml_and_yaml_over_defaults(tmp_path):
    path = yaml(tmp_path, "steps: 5\nks: [2, 4]\nflag: false\n")
    assert parse_config(Settings, "", args=["--config", path]) == Settings("a", 5, [2, 4], False)
    words = [f"--config={path}", "--steps", "7", "--ks", "9", "--flag", "true"]
    assert parse_config(Settings, "", args=words) == Settings("a", 7, [9], True)


def test_without_config_the_demo_is_taken_and_said(tmp_path, caplog):
    path = yaml(tmp_path, "steps: 8\n")
    with caplog.at_level("INFO", "minionerec"):
        assert parse_config(Settings, "", demo=path, args=["--output", "b"]) == Settings("b", 8)
    assert f"taking the demo configuration, {path}" in caplog.text


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("stepz: 5\n", [], r"c.yaml: unknown key 'stepz'. Known keys: output, steps, ks, flag"),
        ("steps: five\n", [], "invalid int value: 'five'"),
        ("- 1\n", [], "c.yaml: expected a mapping of settings, got list"),
        ("a: [1\n", [], "c.yaml: not valid YAML .*line 2"),
        ("steps: 1\n", ["--stepz", "2"], r"--stepz.*See --help"),
        ("steps: 1\n", ["--steps", "x"], "argument --steps: invalid int value: 'x'"),
    ],
)
def test_bad_settings(tmp_path, text, words, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(Settings, "", args=["--config", yaml(tmp_path, text), *words])


def test_missing_config_file():
    with pytest.raises(ConfigError, match=r"nowhere.yaml: no such file"):
        parse_config(Settings, "", args=["--config", "nowhere.yaml"])
    with pytest.raises(ConfigError, match="--config needs the path"):
        parse_config(Settings, "", args=["--config"])


def test_user_errors_are_one_line_and_status_2(capsys):
    def fail():
        raise DataError("cup.csv: row 3 is broken. Mend it.")

    with pytest.raises(SystemExit) as stop:
        run_command(fail)
    assert stop.value.code == 2
    assert capsys.readouterr().err == "error: cup.csv: row 3 is broken. Mend it.\n"


def make(path, text="x", config=None, inputs=None):
    with write_artefact(path, "cups", config=config or {"a": 1}, inputs=inputs, seed=4, counts={"n": 1}) as place:
        (place / "sub").mkdir()
        (place / "sub" / "f.txt").write_text(text)


def test_artefacts_are_equal_when_made_alike(tmp_path):
    make(tmp_path / "one")
    make(tmp_path / "two")
    assert (tmp_path / "one" / "manifest.json").read_bytes() == (tmp_path / "two" / "manifest.json").read_bytes()
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "two")
    make(tmp_path / "two", "y")
    assert fingerprint(tmp_path / "one") != fingerprint(tmp_path / "two")
    manifest = read_manifest(tmp_path / "one", "cups")
    assert (manifest["seed"], manifest["counts"], list(manifest["files"])) == (4, {"n": 1}, ["sub/f.txt"])


def test_a_failing_stage_leaves_the_old_output(tmp_path):
    make(tmp_path / "one")
    before = fingerprint(tmp_path / "one")
    with pytest.raises(RuntimeError), write_artefact(tmp_path / "one", "cups", config={}) as place:
        (place / "half").write_text("h")
        raise RuntimeError
    assert fingerprint(tmp_path / "one") == before
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_what_is_current(tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("1")
    make(tmp_path / "one", inputs={"source": source})
    assert is_current(tmp_path / "one", "cups", {"a": 1}, {"source": source})
    assert not is_current(tmp_path / "one", "cups", {"a": 2}, {"source": source})
    assert not is_current(tmp_path / "one", "cups", {"a": 1}, {})
    source.write_text("2")
    assert not is_current(tmp_path / "one", "cups", {"a": 1}, {"source": source})
    assert not is_current(tmp_path / "none", "cups", {"a": 1}, {})


def test_readers_refuse_what_is_not_theirs(tmp_path):
    make(tmp_path / "one")
    with pytest.raises(ArtefactError, match="holds a 'cups', expected a 'plates'"):
        read_manifest(tmp_path / "one", "plates")
    with pytest.raises(
        ArtefactError, match=r"none: no such directory; expected the output of an earlier stage \(cups\)"
    ):
        read_manifest(tmp_path / "none", "cups")
    (tmp_path / "bare").mkdir()
    with pytest.raises(ArtefactError, match=r"bare: has no manifest.json"):
        read_manifest(tmp_path / "bare")
    verify_files(tmp_path / "one")
    (tmp_path / "one" / "sub" / "f.txt").write_text("changed")
    with pytest.raises(ArtefactError, match=r"f.txt: differs from manifest.json"):
        verify_files(tmp_path / "one")
    (tmp_path / "one" / "sub" / "f.txt").unlink()
    with pytest.raises(ArtefactError, match=r"f.txt: listed in manifest.json but missing"):
        verify_files(tmp_path / "one")


def test_writers_replace_only_artefacts(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("precious")
    for write in (make, require_writable):
        with pytest.raises(ArtefactError, match="thesis: exists and is not an output of this project"):
            write(tmp_path / "thesis")
        (tmp_path / "file").write_text("x")
        with pytest.raises(ArtefactError, match="cannot be written"):
            write(tmp_path / "file" / "deeper")
    with pytest.raises(ArtefactError, match="cannot be written"):
        write_text_atomic(tmp_path / "file" / "deeper.txt", "x")
    assert (tmp_path / "thesis" / "chapter").read_text() == "precious"


def test_broken_json_names_its_place(tmp_path):
    (tmp_path / "a.json").write_text('{"a":\n tru}')
    with pytest.raises(ArtefactError, match=r"a.json: not valid JSON .*line 2 column 2"):
        read_json(tmp_path / "a.json")
    with pytest.raises(ArtefactError, match=r"b.json: no such file"):
        read_json(tmp_path / "b.json")
    (tmp_path / "a.json").write_text(json.dumps([1]))
    assert read_json(tmp_path / "a.json") == [1]
