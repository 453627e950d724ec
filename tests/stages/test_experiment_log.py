"""The experiment log: the published log's tables to the digit, its errors mended, and every part from artefacts."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.pages import Page
from support.published_log import GOLDEN, write_published
from support.runs import lists_of, write_run
from support.trained_shop import GRPO, write_trained

from minionerec.cli.plan import plan_of
from minionerec.cli.recipes import shipped_recipes
from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.settings import parse_settings
from minionerec.data.protocols import PROTOCOLS, read_examples
from minionerec.metrics.predictions import SESSION_CONTEXT, Predictions
from minionerec.reports.cells import MINUS
from minionerec.reports.config import ExperimentLogConfig
from minionerec.reports.experiment_log import NAME, run_experiment_log
from minionerec.reports.sections import NOT_COMPARABLE


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The log of both published data sets, from lists with their rates; Industrial has a stage that is pending."""
    folder = tmp_path_factory.mktemp("published")
    entries = {"Industrial": write_published(folder, "industrial"), "Office": write_published(folder, "office")}
    entries["Industrial"]["stages"]["RL (3 epochs)"] = str(folder / "not_there")
    config = ExperimentLogConfig(entries=entries, output=str(folder / "log"), resamples=100)
    return run_experiment_log(config).output


def tables(markdown):
    """(section, caption, header, rows) of every table; cells without their notes."""
    section = caption = ""
    found, header = [], None
    for line in markdown.splitlines():
        if line.startswith("|"):
            cells = [re.sub(r" ?\[.*", "", cell).strip().strip("*") for cell in line.strip("| ").split(" | ")]
            if header is None:
                header, rows = cells, []
                found.append((section, caption, header, rows))
            elif not set(cells[0]) <= set(":- "):
                rows.append(cells)
            continue
        header = None
        section = line.removeprefix("## ") if line.startswith("## ") else section
        caption = line or caption
    return found


def golden_lines(markdown):
    """Our tables in the form of the golden file."""
    lines = []
    for section, caption, header, rows in tables(markdown):
        name = section.partition(":")[0]
        if header[0] == "Recommender" and "by semantic ID" in caption:
            lines += [[name, "stage", row[0], *row[3:15]] for row in rows if not row[0].startswith("baseline")]
        elif caption.startswith("Discrepancy"):
            shown = next(row for row in rows if row[:2] == ["RL (2 epochs)", "MiniOneRec (paper)"])
            for metric, cell in zip(header[3:], shown[3:], strict=True):
                if cell != "—":
                    gap, ours, theirs, relative = re.match(r"(\S+) (\S+) against (\S+), (\S+ %),", cell).groups()
                    lines.append([name, "gap", metric, theirs, ours, gap, relative])
        elif header[0] == "K" and "by level" not in caption:
            stage, kind = caption.split(":")[0].split(", ")
            lines += [[name, kind, stage, *row] for row in rows]
        elif header[0] == "Drop-off at K = 1" and not header[1].startswith("theirs"):
            lines += [[name, "drop-off", *row] for row in rows]
        elif section == "Across data sets":
            kind = "metric" if header[0] == "Metric" else "level"
            lines += [["Across", kind, *row] for row in rows if row[0] != "Gap"]
    return sorted(" | ".join(cell.replace(MINUS, "-") for cell in line) for line in lines)


def test_tables_are_those_of_the_published_log_to_the_digit(published):
    ours = golden_lines((published / f"{NAME}.md").read_text(encoding="utf-8"))
    theirs = GOLDEN.read_text(encoding="utf-8")
    theirs = re.sub(r"L1 ?→ ?L1\+L2 retention", "L1 → L2 kept", theirs)
    theirs = re.sub(r"L1\+L2 ?→ ?L1\+L2\+L3 retention", "L2 → L3 kept", theirs)
    assert len(theirs.splitlines()) == 82
    assert ours == sorted(theirs.splitlines())


def test_the_published_logs_errors_are_mended(published):
    content = json.loads((published / f"{NAME}.json").read_text(encoding="utf-8"))
    low, high = content["gap_range"]["Industrial"]
    assert (round(100 * low, 1), round(100 * high, 1)) == (-15.5, -12.0)
    markdown = (published / f"{NAME}.md").read_text(encoding="utf-8")
    assert f"| **Gap** | **{MINUS}12.0 % to {MINUS}15.5 %** | **{MINUS}0.2 % to {MINUS}4.8 %** | — | — |" in markdown
    steps = {
        name: next(each["text"] for each in entry["findings"] if each["rule"] == "steps")
        for name, entry in content["entries"].items()
    }
    assert "Of 13 metrics 10 rise and HR@10, HR@20, HR@50 fall, " in steps["Office"]
    assert "Of 13 metrics 13 rise, " in steps["Industrial"]
    beside = [each["text"] for each in content["entries"]["Industrial"]["findings"] if each["rule"] == "published"]
    assert any(f"all 6 figures {MINUS}15.5 % to {MINUS}12.0 %, 0 inside" in text for text in beside)


def test_published_rows_have_their_best_in_bold_and_their_doubtful_cells_marked(published):
    markdown = (published / f"{NAME}.md").read_text(encoding="utf-8")
    lines = {line.split(" | ")[0].strip("| "): line for line in markdown.splitlines() if "| paper |" in line}
    assert "0.1255 ✗" in lines["S-DPO"] and "0.0960 ✗" in lines["TIGER"]
    assert "**0.1340**" in next(
        line for line in markdown.splitlines() if line.startswith("| V-STAR") and "0.134" in line
    )
    assert "**0.1255" not in markdown


def test_a_pending_stage_is_a_dash(published):
    content = json.loads((published / f"{NAME}.json").read_text(encoding="utf-8"))
    assert content["entries"]["Industrial"]["recommenders"]["RL (3 epochs)"] == {"baseline": False, "pending": True}
    assert "Industrial: RL (3 epochs) is pending." in content["warnings"]
    assert read_manifest(published)["counts"] == {"entries": 2, "stages": 5, "pending": 1}


@pytest.fixture
def trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_trained(Path())


def config(entry, **changes):
    return ExperimentLogConfig(**{"entries": {"Shop": entry}, "output": "log", "resamples": 100, **changes})


def read(folder="log"):
    return json.loads(Path(folder, f"{NAME}.json").read_text(encoding="utf-8"))


def test_who_is_given_the_session_context_is_reported_and_stands_apart_from_published_figures(trained):
    conditioned = replace(Predictions.load("eval_grpo"), given=(SESSION_CONTEXT,))
    settings = {"beams": 20, "search": "beam", "seen": "keep"}
    conditioned.save("conditioned", config=settings, inputs={"checkpoint": "grpo"}, counts={"split": "test"})
    name = "RL (given session context)"
    run_experiment_log(config({**trained, "stages": {"SFT": "eval_sft", "RL": "conditioned"}}))
    shop, markdown = read()["entries"]["Shop"], Path("log", f"{NAME}.md").read_text(encoding="utf-8")
    assert list(shop["recommenders"])[:2] == ["SFT", name]
    assert shop["recommenders"][name]["given"] == ["session context"]
    assert shop["compared"] == "SFT" and shop["recommenders"][name]["beside_published"] == []
    beside = markdown.split("## Shop: Comparison with published results")[1].split("\n## ")[0]
    assert beside.index(f"| {NOT_COMPARABLE} |") < beside.index(name) and beside.count("RL (given") == 1
    assert f"| {name} |" in markdown.split("## Shop: Ranking metrics")[1] and f"{name} minus SFT" in markdown
    assert all(name not in message["text"] for message in shop["findings"] if message["rule"] == "published")
    run_experiment_log(config({**trained, "stages": {"RL": "conditioned"}}))
    shop, markdown = read()["entries"]["Shop"], Path("log", f"{NAME}.md").read_text(encoding="utf-8")
    assert (shop["compared"], shop["discrepancy"], shop["settings"]) == (name, [], [])
    assert "Discrepancy" not in markdown and f"| {NOT_COMPARABLE} |" in markdown


def test_trainings_are_reported_with_their_arithmetic_and_outcome(trained, drawn):
    result = run_experiment_log(config(trained))
    shop = read()["entries"]["Shop"]
    conditioned = shop["trainings"]["SFT"]
    assert conditioned["parameters"]["Gradient accumulation"] == "16 (1,024 / 16 / 4 processes)"
    assert conditioned["parameters"]["Learning rate"] == "0.0003 (cosine, warm-up 20 steps)"
    assert conditioned["parameters"]["Maximum epochs"] == "10 (early stopping after 3 validations)"
    assert conditioned["outcome"]["Epochs"] == "6.5 of 10 (stopped early)"
    assert conditioned["outcome"]["Lowest validation loss"] == "1.6000 at epoch 5"
    assert conditioned["outcome"]["Duration"] == "50 min 00 s (train 48 min 20 s, validate 1 min 30 s)"
    assert conditioned["outcome"]["Machine"] == "4 x A40; Some CPU, 32 cores, 8 threads"
    conditioned = shop["trainings"]["RL"]
    assert conditioned["parameters"]["Effective batch"] == "1,024 completions (64 prompts x 16)"
    assert conditioned["parameters"]["Gradient accumulation"] == "not recorded (64 / 4 / processes)"
    assert shop["setup"]["Evaluation, SFT"].endswith("invalid predictions: 0 of 2,400; took 50 min 00 s")
    assert conditioned["outcome"]["Best validation"] == "NDCG@10 0.1100 at step 1,650, epoch 2"
    assert conditioned["outcome"]["Duration"] == "not recorded"
    assert (shop["setup"]["Date"], shop["compared"]) == ("2030-01-31", "RL")
    assert shop["setup"]["Machine"] == "4 x A40; Some CPU, 32 cores, 8 threads"
    beside = {each["row"]: {line.pop("name"): line for line in each["lines"]} for each in shop["settings"]}
    assert {each["stage"] for each in shop["settings"]} == {"RL"}
    lines = beside["MiniOneRec (paper)"]
    assert lines["Backbone"] == {"paper": "unknown", "ours": "Qwen2.5-1.5B-Instruct", "differs": False}
    assert lines["Split and protocol"]["differs"]
    assert [name for name, line in lines.items() if line["differs"]] == ["Split and protocol"]
    markdown = (result.output / f"{NAME}.md").read_text(encoding="utf-8")
    assert "| differs |" in next(line for line in markdown.splitlines() if line.startswith("| Split and protocol |"))
    html = (result.output / f"{NAME}.html").read_text(encoding="utf-8")
    page = Page(html)
    assert len(page.ids) == len(set(page.ids)) and "http" not in html
    assert "Shop: Accuracy by level" in " ".join(page.text)


def test_a_source_that_counts_items_is_met_by_our_item_level_figures(trained):
    run_experiment_log(config({**trained, "reference": "lastfm"}))
    shop = read()["entries"]["Shop"]
    ours = {each["metric"]: each["ours"] for each in shop["discrepancy"]}
    found = shop["recommenders"]["RL"]["metrics"]
    assert shop["reading"] == "item" and shop["levels"] == ["sid", "item"]
    assert ours == {name: found["item"][name]["mean"] for name in ours} and ours["HR@5"] != found["sid"]["HR@5"]["mean"]


def test_a_run_that_resumes_shows_what_changed_and_how_far_it_is(trained):
    folder = Path("grpo_3.partial")
    (folder / "checkpoint-1823").mkdir(parents=True)
    settings = {**GRPO, "epochs": 3.0}
    inputs = {name: record["sha256"] for name, record in read_manifest("grpo")["inputs"].items()}
    (folder / "run.json").write_text(json.dumps({"stage": "grpo", "settings": settings, "inputs": inputs}))
    state = {"global_step": 1823, "max_steps": 2475}
    (folder / "checkpoint-1823" / "trainer_state.json").write_text(json.dumps(state))
    trained["stages"]["RL (3 epochs)"] = {"predictions": "eval_grpo_3", "checkpoint": "grpo_3"}
    assert run_experiment_log(config(trained)).up_to_date is False
    shop = read()["entries"]["Shop"]
    changed = [{"training": "RL (3 epochs)", "from": "RL", "changed": {"epochs": [2.0, 3.0]}}]
    assert shop["changes"] == changed
    conditioned = shop["trainings"]["RL (3 epochs)"]["outcome"]
    assert conditioned == {"Status": "in progress, step 1,823 of 2,475", "Results": "pending"}
    markdown = Path("log", f"{NAME}.md").read_text(encoding="utf-8")
    assert "| epochs | 2 | 3 |" in markdown
    assert "| RL (3 epochs) | - | — | — |" in markdown
    before = Path("log", f"{NAME}.md").read_bytes()
    assert config(trained).up_to_date() and run_experiment_log(config(trained)).up_to_date
    assert Path("log", f"{NAME}.md").read_bytes() == before
    (folder / "checkpoint-1823" / "trainer_state.json").write_text(json.dumps({**state, "global_step": 2000}))
    assert not config(trained).up_to_date()
    assert run_experiment_log(config(trained)).up_to_date is False
    assert "step 2,000 of 2,475" in Path("log", f"{NAME}.md").read_text(encoding="utf-8")


def test_equal_inputs_give_equal_bytes_and_the_paths_of_entries_decide_nothing(trained):
    run_experiment_log(config(trained))
    first = {file: Path("log", file).read_bytes() for file in (f"{NAME}.md", f"{NAME}.html", f"{NAME}.json")}
    run_experiment_log(config(trained, output="again"))
    assert {file: Path("again", file).read_bytes() for file in first} == first


def test_what_is_not_there_any_more_is_reported(trained):
    Path("sft", "training_log.json").write_text("[]")
    Path("sft", "manifest.json").unlink()
    run_experiment_log(config(trained))
    found = read()
    assert "Shop: sft, an input of SFT, is missing or has changed; its settings are not shown." in found["warnings"]
    assert list(found["entries"]["Shop"]["trainings"]) == ["RL"]


def test_sequences_of_a_protocol_without_sids_have_no_level_part(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = [" ".join([f"u{user}", *(f"i{(user + step) % 30:02d}" for step in range(8))]) for user in range(60)]
    Path("data.txt").write_text("\n".join(lines) + "\n")
    targets = read_examples("data.txt", PROTOCOLS["b"], "").test.targets
    for name, most in (("sasrec", 12), ("fearec", 28), *((f"other {n}", 25) for n in range(3))):
        ranks = rng.integers(1, most, (2, len(targets)))
        write_run(Path(name), ranks, targets, lists=[lists_of(found, targets, 10, 30) for found in ranks])
    entry = {"corpus": "data.txt", "protocol": "b", "reference": "beauty"}
    entry["stages"] = {"SASRec": "sasrec", "FEARec": "fearec", **{f"other {n}": f"other {n}" for n in range(3)}}
    run_experiment_log(config(entry))
    shop = read()["entries"]["Shop"]
    assert shop["levels"] == ["item"] and shop["recommenders"]["SASRec"]["levels"] is None
    assert shop["recommenders"]["SASRec"]["metrics"]["item"]["HR@10"]["sd"] > 0
    assert list(shop["trainings"]) == ["SASRec", "FEARec", "other 0", "other 1", "other 2"]
    assert {step["minus"] for step in shop["differences"]} == {"SASRec"}
    beside = {name: [row["row"] for row in of.get("beside_published", ())] for name, of in shop["recommenders"].items()}
    assert beside["SASRec"] == ["SASRec (published)", "FEARec (published)"]
    assert beside["FEARec"] == ["FEARec (published)"]
    assert shop["setup"]["Protocol"] == "B: 5-core, last two out, seen items kept"
    markdown = Path("log", f"{NAME}.md").read_text(encoding="utf-8")
    assert "Accuracy by level" not in markdown and "Across data sets" not in markdown


def shipped_log():
    """The settings of the shipped log of several data sets."""
    return next(job.settings for key, job in plan_of("all/log").items() if key.step == "log")


def test_the_shipped_log_of_several_data_sets_names_what_recipes_make():
    named = [name for name in shipped_recipes() if name.startswith(("industrial", "beauty", "lastfm", "demo"))]
    jobs = [job for name in named for job in plan_of(name).values()]
    made = {str(job.output) for job in jobs} | {str(job.folder.parent) for job in jobs if job.key.seed is not None}
    entries = shipped_log().parsed()
    assert [entry.name for entry in entries] == ["Industrial", "Beauty", "LastFM", "Demo shop"]
    for entry in entries:
        assert {str(folder) for run in entry.stages for folder in run.paths} <= made, entry.name


def test_the_shipped_log_joins_four_data_sets(tmp_path, monkeypatch):
    """Stand-ins: the published log's lists for Industrial, a shop of forty items for the demo, made-up sequences."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIONEREC_DATA", str(tmp_path / "data"))
    Path("data/sequential").mkdir(parents=True)
    lines = [" ".join([f"u{user}", *(str((user + step) % 30 + 1) for step in range(8))]) for user in range(60)]
    titles = json.dumps({str(item + 1): f"thing {item}" for item in range(30)})
    Path("data/sequential/Beauty.titles.json").write_text(titles)
    for name, protocol, models in (("Beauty", "b", ("causal", "sasrec")), ("LastFM", "a", ("causal", "wearec"))):
        file = Path(f"data/sequential/{name}.txt")
        file.write_text("\n".join(lines) + "\n")
        targets = read_examples(file, PROTOCOLS[protocol], "").test.targets
        for number, model in enumerate(models):
            ranks = np.random.default_rng(number).integers(1, 12, (2, len(targets)))
            lists = [lists_of(found, targets, 20, 30) for found in ranks]
            write_run(Path(f"runs/sequential/{name.lower()}_{model}"), ranks, targets, lists=lists)
    Path("stand_in").mkdir()
    published, trained = write_published(Path("stand_in"), "industrial"), write_trained(Path("stand_in"))
    stages = (next(iter(published["stages"].values())), trained["stages"]["SFT"], trained["stages"]["RL"])
    for made, folder in (
        (published["corpus"], "runs/industrial/corpus"),
        (published["sids"], "runs/industrial/sids_published"),
        (stages[0], "runs/industrial/eval_sft"),
        (trained["corpus"], "runs/demo/corpus"),
        (trained["sids"], "runs/demo/sids"),
        (stages[1], "runs/demo/eval_sft"),
        (stages[2], "runs/demo/eval_grpo"),
    ):
        shutil.copytree(made, folder)
    run_experiment_log(replace(shipped_log(), resamples=50, ks=[1, 5, 10]))
    found = read("runs/log")
    assert list(found["entries"]) == ["Industrial", "Beauty", "LastFM", "Demo shop"]
    stages = found["entries"]["LastFM"]["recommenders"].items()
    assert [n for n, of in stages if not of["pending"] and not of["baseline"]] == ["our baseline", "WEARec"]
    markdown = Path("runs/log", f"{NAME}.md").read_text(encoding="utf-8")
    assert all(f"## {name}: Ranking metrics" in markdown for name in found["entries"])
    assert "## Across data sets" in markdown and "| PSWRecV14 | - | — | — |" in markdown
    assert "| Industrial | SFT | NDCG@10 | 0.0951 |" in markdown  # the published log's own figure
    assert "LastFM.txt | file |" in markdown and "lastfm.yaml" not in markdown


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"A": "corpus"}, "entries: A is 'corpus'; expected a mapping with corpus, items"),
        ({"A": {"corpus": "c"}}, "entries: A: stages is missing"),
        ({"A": {"corpus": "c", "stages": {}}}, "entries: A: stages is missing"),
        ({"A": {"corpus": "c", "stages": ["x"]}}, "entries: A: stages is .*expected a mapping of label to directory"),
        ({"A": {"corpus": "c", "stages": {"S": 3}}}, "stages: S: predictions is 3; expected a directory"),
        ({"A": {"corpus": "c", "stages": {"S": {"checkpoint": "x"}}}}, "stages: S: predictions is missing"),
        ({"A": {"corpus": "c", "stages": {"S": {"predictions": "x", "chekpoint": "y"}}}}, "unknown key 'chekpoint'"),
        (
            {"A": {"corpus": "c", "stages": {"S": "x"}, "split": "dev"}},
            "unknown split 'dev'; known: train, valid",
        ),
        ({"A": {"corpus": "c", "stages": {"S": "x"}, "sids": 4}}, "entries: A: sids is 4; expected a text"),
        ({"A": {"corpus": "c", "stages": {"S": "x"}, "sid": "s"}}, "entries: A: unknown key 'sid'; known: corpus"),
    ],
)
def test_mistakes_in_entries_are_named(entries, message):
    with pytest.raises(ConfigError, match=message):
        ExperimentLogConfig(entries=entries, output="log")


def test_a_data_set_without_a_finished_stage_is_dashes_and_a_log_without_any_is_refused(trained):
    later = {**trained, "stages": {"SFT": "nowhere", "RL": "nowhere_either"}}
    run_experiment_log(config(trained, entries={"Later": later, "Shop": trained}))
    markdown = Path("log", f"{NAME}.md").read_text(encoding="utf-8")
    assert "| Later | — | — | — | — |" in markdown and "Later: all stages are pending: SFT, RL." in markdown
    assert "## Later" not in markdown and "## Shop: Ranking metrics" in markdown
    counts = read_manifest(Path("log"))["counts"]
    assert counts == {"entries": 2, "stages": 2 + len(trained["stages"]), "pending": 2}
    trained["stages"] = {"SFT": "nowhere"}
    with pytest.raises(ConfigError, match=r"no stage has predictions, e\.g\. nowhere of Shop"):
        run_experiment_log(config(trained))
    with pytest.raises(ConfigError, match="unknown reference 'moon'"):
        run_experiment_log(config({**trained, "reference": "moon"}))
    with pytest.raises(ArtefactError, match="no_corpus"):
        run_experiment_log(config({**trained, "stages": {"SFT": "eval_sft"}, "corpus": "no_corpus"}))


def test_settings_come_from_a_file(trained):
    Path("log.yaml").write_text(
        "entries:\n  Shop:\n    corpus: corpus\n    sids: sids\n    stages: {SFT: eval_sft}\n"
        "output: log\nresamples: 50\nks: [5, 1]\n"
    )
    result = run_experiment_log(parse_settings(ExperimentLogConfig, ["--config", "log.yaml"]))
    shop = read()["entries"]["Shop"]
    assert shop["published"] == []
    assert list(shop["recommenders"]["SFT"]["metrics"]["sid"]) == ["HR@1", "HR@5", "NDCG@1", "NDCG@5", "MRR@5"]
    assert result.lines[-1] == f"log: log/{NAME}.html (and .md, .json)"
