"""Artefacts from a hostile hand: whatever is wrong with one is a line that names the file, and nothing is destroyed."""

import json
import shutil

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.small_shop import STAGES, bytes_of, command, copied, sign, spoil_manifest, stage

from minionerec.core.artefacts import fingerprint, maker, read_manifest, require_writable
from minionerec.core.errors import ArtefactError, MinioneRecError
from minionerec.data.corpus import Corpus
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.ranked import Ranked
from minionerec.pipeline.stages import STAGES as REGISTRY
from minionerec.sid.table import LARGEST_CODE, SidTable

READERS = {"corpus": "build-sids", "sids": "sft", "sft": "eval-beam", "predictions": "report"}
"""Artefact → a stage that reads it."""

OWN = {settings["output"]: name for name, settings in STAGES.items()}
KINDS = ("corpus", "sids", "sft", "catalogue", "predictions", "report", "export", "lists")


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("name", [name for name in STAGES if name != "train-sequential"])
def test_no_stage_replaces_an_artefact_of_another_kind_or_a_users_files(folder, name):
    (folder / "mine").mkdir()
    (folder / "mine/notes.txt").write_text("mine")
    (folder / "link").symlink_to(folder / "mine")
    (folder / "nowhere").symlink_to(folder / "nowhere")
    before = bytes_of(folder)
    own = read_manifest(folder / STAGES[name]["output"])["kind"]
    others = [output for output in KINDS if read_manifest(folder / output)["kind"] != own]
    for output in [*others, "mine", "link", "nowhere", "items.csv", ".", "..", "sequential", "corpus/new"]:
        reported = stage(folder, name, "--output", output).reported
        assert "Choose another output" in reported or "can" in reported, reported
        if output in others:
            held = read_manifest(folder / output)["kind"]
            assert f"{output}: holds a '{held}', which a '" in reported or f"{output}: is read as " in reported
    after = bytes_of(folder)
    assert {file: after.get(file) for file in before} == before


def test_no_seed_is_written_into_an_artefact(folder):
    before = bytes_of(folder / "sft")
    assert "is inside the artefact" in stage(folder, "train-sequential", "--output", "sft").reported
    assert bytes_of(folder / "sft") == before


@pytest.mark.parametrize("name", ["sft", "extend"])
def test_no_stage_replaces_what_it_reads(folder, name):
    before = bytes_of(folder / "sft")
    given = {"sft": ["--model", "sft"], "extend": ["--checkpoint", "sft", "--corpus", "corpus", "--sids", "sids"]}[name]
    words = ["--config", "sft.yaml"] if name == "sft" else []
    assert "Choose another" in command(folder, name, *words, *given, "--output", "sft").reported
    assert bytes_of(folder / "sft") == before


@pytest.mark.parametrize("artefact", READERS)
def test_a_file_that_was_changed_or_deleted_is_named_by_whoever_reads_it(folder, artefact):
    for file in sorted(read_manifest(folder / artefact)["files"]):
        content = (folder / artefact / file).read_bytes()
        if not content:
            continue
        flip(folder / artefact / file)
        reported = stage(folder, READERS[artefact], "--output", "new").reported
        assert f"{artefact}/{file}: differs from manifest.json. Run the stage" in reported
        assert "(minionerec " in reported
        (folder / artefact / file).unlink()
        reported = stage(folder, READERS[artefact], "--output", "new").reported
        assert f"{artefact}/{file}: listed in manifest.json but missing. Run the stage" in reported
        (folder / artefact / file).write_bytes(content)
    assert not (folder / "new").exists()
    if artefact == "predictions":
        flip(folder / "predictions/predictions.parquet")
        reported = command(folder, "calc-level", "--predictions", "predictions").reported
        assert "predictions.parquet: differs" in reported


@pytest.mark.parametrize("artefact", ["corpus", "sids", "predictions"])
def test_an_output_that_lacks_a_file_is_rebuilt(folder, artefact):
    """One whose file was edited: tests/hostile/test_life.py."""
    before = bytes_of(folder / artefact)
    (folder / artefact / sorted(read_manifest(folder / artefact)["files"])[0]).unlink()
    assert stage(folder, OWN[artefact]).status == 0
    assert bytes_of(folder / artefact) == before


def test_the_library_reads_nothing_that_was_changed(folder):
    for artefact, file, read in (
        ("corpus", "sequences/00000.parquet", Corpus.load),
        ("sids", "index.json", SidTable.load_index),
        ("predictions", "predictions.parquet", Predictions.load),
        ("predictions", "predictions.parquet", lambda path: Ranked.load(path, "test")),
    ):
        content = (folder / artefact / file).read_bytes()
        flip(folder / artefact / file)
        with pytest.raises(ArtefactError, match=f"{file}: differs from manifest.json"):
            read(folder / artefact)
        (folder / artefact / file).write_bytes(content)
        read(folder / artefact)


MANIFESTS = [
    *(b"", b"[]", b"{", b"{}", b"null", b"\xff\xfe{}", b"[" * 200_000, b'{"kind": ' * 100_000, b'"\\ud800"'),
    *(b'{"kind": "corpus"}', b'{"kind": 5, "files": {}}', b'{"kind": "corpus", "kind": "sids"}', b"9" * 5000),
]
SHA = {"sha256": "0" * 64}
FLAWS = {
    "files as a list": lambda content: content.update(files=["items.parquet"]),
    "files without hashes": lambda content: content.update(files=dict.fromkeys(content["files"], 5)),
    "files elsewhere": lambda content: content.update(files={"../../etc/passwd": "0" * 64}),
    "files with a nul": lambda content: content.update(files={"a\0b": "0" * 64}),
    "inputs as a list": lambda content: content.update(inputs=[]),
    "inputs without paths": lambda content: content.update(inputs={"corpus": SHA}),
    "inputs with a nul": lambda content: content.update(inputs={"corpus": {"path": "a\0", **SHA}}),
    "inputs with half a character": lambda content: content.update(inputs={"corpus": {"path": "\ud800", **SHA}}),
    "counts as a text": lambda content: content.update(counts="many"),
    **{f"no {key}": lambda content, key=key: content.pop(key) for key in ("versions", "config", "kind")},
}


@pytest.mark.parametrize("artefact", ["corpus", "sft", "predictions"])
def test_half_a_manifest_or_none_is_one_line(folder, artefact):
    file = folder / artefact / "manifest.json"
    before = file.read_bytes()
    for flaw in (*MANIFESTS, *FLAWS):
        if isinstance(flaw, bytes):
            file.write_bytes(flaw)
        else:
            spoil_manifest(folder / artefact, FLAWS[flaw])
        for name in (READERS[artefact], OWN[artefact]):
            assert f"{artefact}/manifest.json" in stage(folder, name).reported, flaw
        file.write_bytes(before)


def test_a_directory_or_a_circle_of_links_instead_of_a_manifest_is_one_line(folder):
    file = folder / "corpus/manifest.json"
    file.unlink()
    file.mkdir()
    assert "corpus: has no manifest.json" in stage(folder, "build-sids", "--output", "new").reported
    file.rmdir()
    file.symlink_to(file)
    assert "corpus: has no manifest.json" in stage(folder, "build-sids", "--output", "new").reported


EDITS = {
    "corpus": lambda content: content["counts"].update(max_history=1),
    "sft": lambda content: content["counts"].update(max_prompt_length=1),
    "predictions": lambda content: content["counts"].update(beams=1),
}


@pytest.mark.parametrize("artefact", EDITS)
def test_an_edited_manifest_is_noticed(folder, artefact):
    """Counts decide results as files do: how long prompts are, how many items a history holds."""
    before = bytes_of(folder / artefact)
    spoil_manifest(folder / artefact, EDITS[artefact])
    reported = stage(folder, READERS[artefact], "--output", "new").reported
    assert f"{artefact}/manifest.json: was edited by hand. Run the stage that makes {artefact} again" in reported
    assert stage(folder, OWN[artefact]).status == 0
    assert bytes_of(folder / artefact) == before


def test_every_stage_is_named_by_what_it_makes():
    for spec in REGISTRY.values():
        kind = getattr(spec.config_class(), "kind", "")
        assert not kind or spec.name in maker(kind), spec.name
    assert maker("sequential_model") == " (minionerec train-sequential)"


TABLES = {
    ("corpus", "items.parquet"): [
        lambda table: table.drop(columns="title"),
        lambda table: table.assign(title=5),
        lambda table: table.assign(title=[None, *table["title"][1:]]),
        lambda table: table.iloc[:3],
    ],
    ("predictions", "predictions.parquet"): [
        lambda table: table.drop(columns="sid"),
        lambda table: table.assign(sid=None),
        lambda table: table.assign(sid=5),
        lambda table: table.assign(item=2**40),
        lambda table: table.assign(item=0.5),
        lambda table: table.assign(row="a"),
        lambda table: table.assign(row=7),
        lambda table: table.assign(score="high"),
        lambda table: table.assign(target=-(2**40)),
        lambda table: table.assign(item=77),
        lambda table: table.assign(user=[None, *table["user"][1:]]),
    ],
}
CASES = [(artefact, file, number) for (artefact, file), changes in TABLES.items() for number in range(len(changes))]


@pytest.mark.parametrize(("artefact", "file", "number"), CASES)
def test_a_table_of_another_form_is_one_line(folder, artefact, file, number):
    table = pq.read_table(folder / artefact / file).to_pandas()
    TABLES[artefact, file][number](table).to_parquet(folder / artefact / file, index=False)
    sign(folder / artefact)
    assert artefact in stage(folder, READERS[artefact], "--output", "new").reported


@pytest.mark.parametrize(("artefact", "file"), [*TABLES, ("corpus", "sequences/00000.parquet")])
def test_a_torn_or_flipped_table_is_one_line(folder, artefact, file):
    content = (folder / artefact / file).read_bytes()
    broken = [b"", b"PAR1", content[:-1], content[: len(content) // 2], content[:4] + content[5:], b"PAR1" + content]
    for offset in range(0, len(content), max(1, len(content) // 40)):
        flipped = bytearray(content)
        flipped[offset] ^= 0xFF
        broken.append(bytes(flipped))
    read = {"corpus": Corpus.load, "predictions": Predictions.load}[artefact]
    for bad in broken:
        (folder / artefact / file).write_bytes(bad)
        sign(folder / artefact)
        try:
            read(folder / artefact)
        except MinioneRecError as error:
            assert "\n" not in str(error) and file in str(error)


def test_a_table_with_a_column_twice_is_one_line(folder):
    file = folder / "corpus/sequences/00000.parquet"
    table = pq.read_table(file)
    pq.write_table(pa.table([*table.columns, table["user"]], names=[*table.column_names, "user"]), file)
    sign(folder / "corpus")
    with pytest.raises(ArtefactError, match="has 2 columns 'user'"):
        Corpus.load(folder / "corpus")


def test_a_column_that_is_the_index_of_pandas_is_a_column(folder):
    file = folder / "predictions/predictions.parquet"
    expected = pd.read_parquet(file)
    expected.set_index("user").to_parquet(file)
    sign(folder / "predictions")
    pd.testing.assert_frame_equal(Predictions.load(folder / "predictions").to_frame(), expected)


INDEXES = {
    '{"i0": ["<a_2147483648>"]}': "codes are at most",
    '{"i0": ["<a_2147483647>"]}': "codes are at most",
    f'{{"i0": ["<a_{"9" * 6000}>"]}}': "codes are at most",
    f'{{"i0": ["<a_{LARGEST_CODE + 1}>"]}}': "codes are at most",
    '{"i0": ["<a_01>"]}': "expected token strings",
    '{"i0": ["<a_٣>"]}': "expected token strings",
    '{"i0": ["<A_1>"]}': "expected token strings",
    '{"i0": [["<a_1>"]]}': "expected token strings",
    '{"i0": ["<a_1>"], "i0": ["<a_2>"]}': "is given twice",
    "{}": "empty",
    "[" * 100_000: "not valid JSON",
    '{"i0": ["\\ud800"]}': "lone surrogate",
}


@pytest.mark.parametrize("content", INDEXES, ids=range(len(INDEXES)))
def test_an_index_with_codes_that_no_table_has_is_one_line(tmp_path, content):
    (tmp_path / "index.json").write_text(content, encoding="utf-8")
    with pytest.raises(MinioneRecError, match=INDEXES[content]) as wrong:
        SidTable.load_index(tmp_path)
    assert len(str(wrong.value)) < 3000


def test_the_largest_code_is_quick(tmp_path):
    (tmp_path / "index.json").write_text(json.dumps({"i0": [f"<a_{LARGEST_CODE}>", "<b_0>"]}))
    assert SidTable.load_index(tmp_path).sids == [f"<a_{LARGEST_CODE}><b_0>"]


def test_vectors_beyond_what_float32_can_square_are_refused(shop, tmp_path):
    import numpy as np

    folder = copied(shop, tmp_path / "shop", ("new",))
    for value in (1e30, -1e30, 1e13, 3e38):
        vectors = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)
        vectors[3, 2] = value
        np.save(folder / "vectors.npy", vectors)
        reported = stage(folder, "build-sids", "--encoder", "vectors.npy", "--output", "new").reported
        assert "vectors.npy: row 3 holds" in reported and "at most 1e+12" in reported
    vectors[3, 2] = 1e11
    np.save(folder / "vectors.npy", vectors)
    assert stage(folder, "build-sids", "--encoder", "vectors.npy", "--output", "new").status == 0


def test_a_strangers_manifest_above_the_output_is_no_artefact(tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "a web page"}')
    require_writable(tmp_path / "new", "corpus")


def test_an_unfinished_run_that_cannot_be_read_is_one_line(shop, tmp_path):
    path = copied(shop, tmp_path / "shop", ("predictions",))
    for content in ("", "[]", "{}", '{"settings": [], "inputs": {}}', "[" * 100_000):
        (path / "predictions.partial").mkdir(exist_ok=True)
        (path / "predictions.partial/run.json").write_text(content)
        assert "Delete the folder to begin again" in stage(path, "eval-beam").reported
    shutil.rmtree(path / "predictions.partial")
    assert stage(path, "eval-beam").status == 0
    made, first = ((folder / "predictions/predictions.parquet").read_bytes() for folder in (path, shop))
    assert made == first


def test_lists_of_predictions_stay_as_they_are(shop):
    """What is checked on reading changes nothing that is right."""
    ours = Predictions.load(shop / "predictions").to_frame()
    pd.testing.assert_frame_equal(ours, pd.read_parquet(shop / "predictions/predictions.parquet"))


PAGE = ["SFT=predictions", "SASRec=sequential", "--corpus", "corpus", "--resamples", "3"]


def test_users_without_training_examples_are_the_same_to_all_recommenders(folder):
    users = [Ranked.load(folder / name, "test").users for name in ("predictions", "sequential/predictions")]
    assert users[0] == users[1] and {*users[0]} - {*Corpus.load(folder / "corpus").train.users}
    done = command(folder, "report", "--predictions", *PAGE, "--output", "page")
    assert done.status == 0, done


@pytest.mark.parametrize("name", ["seed-", "seed-x", "seed-1 (copy)", "seed-٣", "seed-01", "seed-" + "9" * 200])
def test_a_folder_that_is_not_named_by_a_seed_is_one_line(folder, shop, name):
    copied(shop / "sequential/predictions", folder / "sequential" / name / "predictions")
    reported = command(folder, "report", "--predictions", *PAGE, "--output", "page").reported
    assert "is not named by a seed, such as seed-42. Rename it or move it away." in reported


@pytest.mark.parametrize(
    "content", ["[]", '{"ceiling": 1}', '{"ceiling": {"NDCG@5": "x"}}', '{"ceiling": {"HR@5": NaN}}']
)
def test_a_ceiling_without_metrics_is_one_line(folder, content):
    (folder / "ceiling.json").write_text(content)
    words = (*PAGE, "--output", "page", "--ceiling", "ceiling.json")
    reported = command(folder, "report", "--predictions", *words).reported
    assert "ceiling.json: expected an object whose ceiling holds metrics from 0 to 1" in reported


def test_ranks_that_are_none_and_splits_of_another_type_are_one_line(folder):
    file = folder / "predictions/ranks.parquet"
    table = pd.read_parquet(file)
    for changed, message in (
        (table.assign(item_rank=-3), "column 'item_rank' holds -3; expected 0 to"),
        (table.assign(split=7), "column 'split' holds int64; expected texts"),
        (table.assign(width=-1), "column 'width' holds -1"),
    ):
        changed.to_parquet(file)
        sign(folder / "predictions")
        assert message in command(folder, "report", "--predictions", *PAGE, "--output", "page").reported


def test_forged_settings_and_logs_of_a_training_are_left_out(folder):
    forged = {"warmup": "x", "epochs": [1], "patience": {"a": 1}, "layers": "<b>"}
    spoil_manifest(folder / "sft", lambda content: content["settings"].update(forged))
    log = [{"epoch": "x", "eval_loss": 1.5, "step": 1}, 7, {"loss": [1.0]}, {"step": 1, "epoch": None}]
    (folder / "sft/training_log.json").write_text(json.dumps(log))
    sign(folder / "sft")
    sha256 = fingerprint(folder / "sft")
    spoil_manifest(folder / "predictions", lambda content: content["inputs"]["checkpoint"].update(sha256=sha256))
    sign(folder / "predictions")
    done = stage(folder, "report", "--output", "page")
    assert done.status == 0, done
    assert "<b>" not in (folder / "page/report.html").read_text(encoding="utf-8")


def test_a_seed_or_versions_of_another_type_are_one_line(folder):
    for key, value in (("seed", "x"), ("versions", {"torch": 2}), ("settings", [])):
        spoil_manifest(folder / "predictions", lambda content: content.update({key: value}))  # noqa: B023
        sign(folder / "predictions")
        reported = stage(folder, "report").reported
        assert "predictions/manifest.json: has " in reported and "of another form" in reported


def test_metrics_of_a_report_hold_nothing_of_the_clock(folder):
    found = []
    for seconds in ("1.5", "2.5"):
        for record in folder.glob("*.record.json"):
            content = json.loads(record.read_text())
            record.write_text(json.dumps({**content, "seconds": {"all": float(seconds)}}))
        words = ("--ks", "5", "--output", f"page-{seconds}")
        assert command(folder, "report", "--predictions", *PAGE, *words).status == 0
        found.append((folder / f"page-{seconds}/metrics.json").read_bytes())
    assert found[0] == found[1]
