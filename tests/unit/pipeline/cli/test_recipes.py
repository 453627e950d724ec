"""Recipes: what is shipped, what a file may say, which steps another needs, and copies to be edited."""

import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml
from support.paths import ROOT

from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.pipeline.cli import run
from minionerec.pipeline.cli.init import BASE
from minionerec.pipeline.cli.plan import Job, Plan, config_values, jobs_before, plan_of, selected_jobs
from minionerec.pipeline.cli.recipes import DEMO, copy_recipe, find_recipe, read_recipe, shipped_recipes
from minionerec.pipeline.cli.run import ensure_before, parsed_changes, parsed_seeds
from minionerec.pipeline.stages import STAGES
from minionerec.reports.reference import load_reference

CONFIGS = ROOT / "configs"
NAMES = [str(path.relative_to(CONFIGS).with_suffix("")) for path in sorted(CONFIGS.glob("*/[!_]*.yaml"))]


planned = cache(plan_of)
"""The plans of shipped recipes, which many tests read."""


def steps_of(name):
    return list(plan_of(name).values())


@pytest.mark.parametrize("name", NAMES)
def test_every_step_of_a_shipped_recipe_has_valid_settings(name):
    jobs = planned(name)
    steps = [*jobs.values()]
    assert steps and all(isinstance(step.settings, step.spec.config_class()) for step in steps)
    texts = [value for step in steps for value in step.values.values() if isinstance(value, str)]
    assert not [text for text in texts if "{" in text]


def test_every_published_table_that_a_recipe_names_is_there():
    names = {getattr(job.settings, "reference", "") for name in NAMES for job in planned(name).values()}
    assert len(names) > 3 and all(load_reference(name).rows for name in names if name)


def test_every_file_is_a_recipe_or_begins_one():
    based = {yaml.safe_load(path.read_text()).get("base") for path in CONFIGS.rglob("*.yaml")} | {Path(BASE).name}
    assert {path.stem for path in CONFIGS.rglob("_*.yaml")} <= based
    assert {path.suffix for path in CONFIGS.rglob("*") if path.is_file()} == {".yaml"}


@pytest.mark.parametrize("spec", [spec for spec in STAGES.values() if spec.demo], ids=lambda spec: spec.name)
def test_the_demo_configuration_of_every_stage_parses(spec):
    kind = spec.config_class()
    assert isinstance(kind(**config_values(kind, spec.demo)), kind)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_reads_only_what_it_has_made_before(name):
    jobs = planned(name)
    made = set()
    for key, job in jobs.items():
        assert made.issuperset(job.needs), job.title
        first = job.spec.name in ("make-city", "prepare-data", "train-preference")
        assert job.needs or first or "$MINIONEREC_DATA" in job.settings.corpus, job.title
        made.add(key)


@pytest.mark.parametrize("size", ["bigrec", "d3", "d3_titles", "lcrec", "qwen", "sdpo", "titles"])
def test_the_large_models_differ_in_what_the_file_says(size):
    """A recipe for 0.5B is that for 1.5B with another model and another folder."""
    small, large = (planned(f"industrial/{size}-{name}") for name in ("0.5b", "1.5b"))
    assert list(small) == list(large)
    for key, job in small.items():
        ours, theirs = vars(job.settings), vars(large[key].settings)
        names = {name for name in ours if ours[name] != theirs[name]}
        paths = {"output", "checkpoint", "predictions", "texts", "corpus", "sids"}
        assert names <= paths | {"model", "encoder", "title"}, (key, names)


def test_the_shipped_recipes_are_listed_with_what_they_are_for():
    listed = shipped_recipes()
    assert list(listed) == sorted(name.removesuffix("/language") for name in NAMES)
    assert listed["demo"] == ("The whole pipeline on the demo shop: a few minutes on two cores, no network")
    assert all(listed.values())


def test_the_demo_recipe_makes_what_its_settings_name():
    models = ("catalogue", "sft", "grpo")
    names = ("corpus", "sids", *models, *(f"eval_{name}" for name in models), "report")
    assert {str(step.output) for step in steps_of("demo") if step.output} == {f"runs/demo/{name}" for name in names}
    assert [step.title for step in steps_of("demo")] == [
        "data", "sids", "catalogue", "eval_catalogue", "sft", "eval_sft", "grpo", "eval_grpo", "levels", "report",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("demo", "demo/language.yaml"),
        ("industrial/catalogue", "industrial/catalogue.yaml"),
        ("configs/industrial/catalogue.yaml", "industrial/catalogue.yaml"),
        ("configs/industrial/catalogue", "industrial/catalogue.yaml"),
    ],
)
def test_a_shipped_recipe_is_found_from_anywhere(tmp_path, monkeypatch, name, folder):
    monkeypatch.chdir(tmp_path)
    assert find_recipe(name) == CONFIGS / folder


def test_a_file_of_the_user_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    assert find_recipe("demo") == CONFIGS / "demo" / "language.yaml"  # a folder is none
    (tmp_path / "demo.yaml").write_text("steps: {}\n")
    assert find_recipe("demo") == find_recipe("demo.yaml") == Path("demo.yaml")


def test_an_unknown_recipe_names_those_it_may_be():
    with pytest.raises(
        ConfigError, match=r"^industrial/sdp: no such recipe; .*Did you mean industrial/sdpo.*minionerec"
    ):
        find_recipe("industrial/sdp")


SFT = "sft: {corpus: c, sids: s, output: there}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("steps: {}", r"mine.yaml: has no steps; give it `steps:` with at least one"),
        ("steps: [sft]", r"mine.yaml, line 1: steps is \['sft'\]; expected a mapping"),
        (f"steps:\n  {SFT}\n  {SFT}", r"mine.yaml: not valid YAML \(line 3, column 3: 'sft' twice\)"),
        ("steps:\n  a b: {}", r"line 2: steps.a b: 'a b' cannot be a step's name"),
        ("steps:\n  one: {stage: no-such}", r"line 2: steps.one.stage: no stage 'no-such'; known: prepare-data, "),
        ("steps:\n  one: {epochs: 1}", r"line 2: steps.one: has no stage, and no step of the base has this name"),
        ("steps:\n  sft: {no_such: 1}", r"line 2: steps.sft: unknown key 'no_such'. Known keys: output, "),
        ("steps:\n  sft: {epochs: many, output: x}", r"line 2: steps.sft: epochs is 'many'; expected a number"),
        ("steps:\n  sft: {corpus: c}", r"line 2: steps.sft: has no output; give it one, or the recipe an `output`"),
        ("steps:\n  sft:\n    config: missing.yaml", r"missing\.yaml: no such file"),
        ("steps:\n  sft: {config: demo#grpo}", r"line 2: steps.sft.config: demo#grpo: is a step of minionerec grpo"),
        ("steps:\n  sft: {config: demo#no}", r"demo#no: demo/language has no step 'no'; its steps: data, sids, "),
        ("steps:\n  sft: {config: mine#sft}", r"mine#sft takes its settings from itself, by way of other steps"),
        ("stages: []", r"mine.yaml, line 1: stages: unknown key 'stages'. Known keys: output, seeds, jobs, threads"),
        (f"launch: nowhere.yaml\nsteps: {{{SFT}}}", r"launch is 'nowhere.yaml', but there is no such file"),
        ("- sft", r"expected a mapping"),
        ("base: nowhere", r"mine.yaml, line 1: base: nowhere: no such recipe"),
        ("base: mine", r"line 1: base is 'mine', which is based on this file, by way of mine"),
        ("base: demo\nwithout: [sftt]", r"line 2: without names 'sftt'; the steps of the base: data, sids, catalogue"),
        (
            "base: demo\nwithout: [sft]",
            r"steps.eval_sft: checkpoint names {sft}, which is unknown here; known: ",
        ),
        ("base: demo\nvariables: {sft: 1}", r"line 2: variables: 'sft' is both a variable and a step"),
        ("variables: {runs: 1}\nsteps: {sft: {}}", r"line 1: variables: 'runs' cannot be a name"),
        (
            "output: x\nvariables: {a: '{b}', b: 'b{a}'}\nsteps:\n  sft: {corpus: '{a}'}",
            r"line 4: steps.sft: corpus: the variables a -> b -> a name each other in a circle",
        ),
        (
            "output: x\nsteps:\n  sft: {corpus: '{data}'}\n  data: {stage: prepare-data}",
            r"line 3: steps.sft: corpus names {data}, which is unknown here; known: {runs}",
        ),
        (
            "output: x\nsteps:\n  levels: {stage: calc-level, predictions: a}\n  sft: {corpus: '{levels}'}",
            r"line 4: steps.sft: corpus names {levels}, but that step only prints",
        ),
        (
            "output: x\nsteps:\n  sft: {corpus: c, sids: s, output: y}\n  grpo: {corpus: c, checkpoint: d, output: y}",
            r"grpo writes y, and sft writes y; give each an output of its own, none inside another",
        ),
        (
            "output: x\nsteps:\n  sft: {corpus: c, sids: s}\n  grpo: {corpus: c, checkpoint: d, output: x/sft/y}",
            r"grpo writes x/sft/y, and sft writes x/sft; give each an output of its own, none inside another",
        ),
        (f"output: runs/{{sft}}\nsteps:\n  {SFT}\n", r"line 1: output is 'runs/{sft}', but .* holds no placeholders"),
        (f"seeds: [1, 1]\nsteps: {{{SFT}}}", r"line 1: seeds names one twice; give each once"),
        (
            "output: x\nserve: catalogue\nsteps:\n  data: {stage: prepare-data}",
            r"line 2: serve is 'catalogue', which is no step; its steps: data",
        ),
        (
            "steps:\n  sft: {config: '#no'}",
            r"line 2: steps.sft: config is '#no', which names no step; the others: none",
        ),
        (
            "steps:\n  sft: {config: '#grpo'}\n  grpo: {config: '#sft'}",
            r"line 3: steps.grpo: config is '#sft', which refers back to the step itself; the others: sft",
        ),
        (
            "output: x\nsteps:\n  data: {stage: prepare-data, source: demo}\n"
            "  sids: {stage: build-sids, corpus: {data}}",
            r'line 4: steps.sids: corpus is a mapping; put the placeholder in quotes: "{data}"',
        ),
        (
            "steps:\n  sft: {config: configs/demo/language.yaml}",
            r"line 2: steps.sft.config: configs/demo/language.yaml: is a recipe; name the step",
        ),
        ("steps:\n  sft: {output: x, corpus: '{seed}', sids: s}", r"corpus names {seed}, which is unknown here"),
        (
            "steps:\n  sids: {stage: build-sids, corpus: x/sft, output: x/sids}\n"
            "  sft: {corpus: c, sids: x/sids, output: x/sft}",
            r"(sids|sft) needs itself, by way of other steps\. Change its inputs",
        ),
    ],
)
def test_a_malformed_recipe_is_refused_in_one_line(tmp_path, content, message):
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(ConfigError, match=message) as raised:
        plan_of(tmp_path / "mine.yaml")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("variables", "given", "filled"),
    [
        ("{}", "{sft", "{sft"),
        ("{}", "a}{b c}", "a}{b c}"),
        ("{x: sids, y: '{x}'}", "{{y}}", "{sids}"),
        ("{x: '{x{y', y: '}}'}", "{x}}", "{x{y}"),
        ("{x: '{', y: 'y}'}", "{x}y}", "{y}"),
    ],
)
def test_what_is_filled_in_is_not_filled_again(tmp_path, variables, given, filled):
    (tmp_path / "mine.yaml").write_text(
        f"output: runs\nvariables: {variables}\nsteps:\n  sids: {{stage: build-sids, corpus: c}}\n"
        f"  sft: {{corpus: '{given}', sids: s}}\n"
    )
    jobs = {key.step: job for key, job in plan_of(tmp_path / "mine.yaml").items()}
    assert jobs["sft"].settings.corpus == filled


def test_a_step_is_not_started_with_settings_that_its_recipe_held_before(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(f"steps:\n  {SFT}\n")
    (job,) = plan_of(file).values()
    job.prepare()
    file.write_text(f"steps:\n  {SFT[:-1]}, epochs: 3}}\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml#sft: was changed since this run began\. Run the same command"):
        job.prepare()


def test_a_recipe_whose_name_begins_with_a_hyphen_is_named_so_that_commands_read_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("-mine.yaml").write_text(f"steps:\n  {SFT}\n")
    (job,) = plan_of("-mine.yaml").values()
    assert job.words()[job.words().index("--config") + 1] == "./-mine.yaml#sft"
    job.prepare()


def test_a_base_is_changed_step_by_step(tmp_path):
    """New steps stand after the one that they follow in the file; variables keep types; `output` moves outputs."""
    (tmp_path / "first.yaml").write_text(
        "output: runs/first\nvariables: {size: 32, name: small, sizes: [8, '{size}']}\nsteps:\n"
        "  data: {stage: prepare-data, source: demo, output: runs/corpus}\n"
        "  sids: {stage: build-sids, corpus: '{data}', codebook_sizes: '{sizes}'}\n"
        "  sft: {corpus: '{data}', sids: '{sids}', hidden_size: '{size}', model: 'x/{name}'}\n"
        "  report: {corpus: '{data}', predictions: {SFT: '{sft}'}}\n"
    )
    (tmp_path / "second.yaml").write_text(
        "base: first\noutput: runs/second\nvariables: {size: 64, name: large}\nwithout: [report]\nsteps:\n"
        "  sft: {epochs: 3}\n  eval: {stage: eval-beam, checkpoint: '{sft}', corpus: '{data}'}\n"
        "  again: {config: '#sft', epochs: 4}\n"
    )
    first, second = (plan_of(tmp_path / f"{name}.yaml") for name in ("first", "second"))
    assert [key.step for key in second] == ["data", "sids", "sft", "eval", "again"]
    jobs = {key.step: job for key, job in second.items()}
    sft, again = jobs["sft"].settings, jobs["again"].settings
    assert (sft.hidden_size, sft.model, sft.epochs, sft.output) == (64, "x/large", 3, "runs/second/sft")
    assert jobs["sids"].settings.codebook_sizes == [8, 64]
    assert (again.hidden_size, again.sids, again.epochs) == (64, "runs/second/sids", 4)
    assert again.output == "runs/second/again" and jobs["eval"].settings.checkpoint == "runs/second/sft"
    assert [job.settings.output for job in first.values()][:2] == ["runs/corpus", "runs/first/sids"]


def test_settings_are_taken_from_a_step_of_another_recipe_but_not_its_path(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "output: runs/mine\nsteps:\n  sft: {config: industrial/labels#sft, epochs: 1}\n"
    )
    (job,) = plan_of(tmp_path / "mine.yaml").values()
    theirs = next(job for key, job in plan_of("industrial/labels").items() if key.step == "sft").settings
    different = {name for name, value in vars(theirs).items() if vars(job.settings)[name] != value}
    assert different == {"epochs", "output"} and job.settings.output == "runs/mine/sft"


def without_reference(values):
    if isinstance(values, dict):
        values = {key: value for key, value in values.items() if key not in ("reference", "published")}
        return {key: without_reference(value) for key, value in values.items()}
    return values


def test_a_recipe_is_copied_as_one_file_to_be_edited(tmp_path):
    """Of one with a base all is written out; its steps are the same ones but for published results to compare with."""
    copies = ("demo", "industrial/d3-0.5b", "industrial/catalogue", "industrial/generative", "industrial/sequential")
    for name in copies:
        copied = copy_recipe(name, tmp_path / "new" / f"{name.replace('/', '-')}.yaml")
        assert "base" not in yaml.safe_load(copied.read_text()) and copied.read_text().startswith("# ")
        ours, theirs = plan_of(copied), plan_of(name)
        assert ours.keys() == theirs.keys()
        for key, job in ours.items():
            assert not vars(job.settings).get("reference") and " reference:" not in copied.read_text()
            assert without_reference(vars(job.settings)) == without_reference(vars(theirs[key].settings))
        assert without_reference(vars(read_recipe(copied).settings)) == without_reference(
            vars(read_recipe(name).settings)
        )
    copied = copy_recipe("demo", tmp_path / "folder")
    assert copied == tmp_path / "folder" / "language.yaml"
    copied.write_text(copied.read_text().replace("source: demo", "source: demo, core: 2"))
    assert steps_of(copied)[0].settings.core == 2
    assert steps_of("demo")[0].settings.core != 2


def test_a_copy_replaces_nothing(tmp_path):
    (tmp_path / "mine.yaml").write_text("1")
    with pytest.raises(ConfigError, match="exists already; give a new file"):
        copy_recipe("demo", tmp_path / "mine.yaml")
    with pytest.raises(ConfigError, match="cannot be written"):
        copy_recipe("demo", tmp_path / "mine.yaml" / "below")


def test_a_part_of_a_recipe_is_named_by_its_steps():
    plan = Plan(read_recipe("demo"))
    assert selected_jobs(plan) == plan.all()
    assert [key.step for key in selected_jobs(plan, None, "sft", "grpo")] == ["sft", "eval_sft", "grpo"]
    assert [key.step for key in selected_jobs(plan, ["eval_sft"], "catalogue", "sft")] == ["catalogue", "sft"]


@pytest.mark.parametrize(
    ("only", "first", "last", "message"),
    [
        (None, "nowhere", None, r"--from nowhere: demo/language has no such step. Its steps: data, sids, "),
        (None, None, "nowhere", r"--until nowhere: demo/language has no such step"),
        (["sft", "nowhere"], None, None, r"--only nowhere: demo/language has no such step. Its steps: data, sids, "),
        (["sids"], "grpo", None, r"--from grpo: demo/language has no such step. Its steps: data, sids\.$"),
        (None, "grpo", "sft", r"--from grpo comes after --until sft in demo/language"),
    ],
)
def test_a_part_that_is_not_there_is_refused(only, first, last, message):
    with pytest.raises(ConfigError, match=message):
        selected_jobs(Plan(read_recipe("demo")), only, first, last)


def settings(stage, **values):
    return STAGES[stage].config_class()(**values)


def test_steps_before_are_those_that_are_read():
    jobs = plan_of("demo")

    def names(config):
        return [key.step for key in jobs_before(jobs, config)]

    assert names(settings("eval-beam", checkpoint="runs/demo/grpo", corpus="runs/demo/corpus", output="x")) == [
        "data",
        "sids",
        "catalogue",
        "sft",
        "grpo",
    ]
    assert names(settings("build-sids", corpus="runs/demo/corpus/", output="x")) == ["data"]
    assert names(settings("build-sids", corpus="elsewhere", output="runs/demo/sft")) == []
    report = settings("report", predictions={"X": "runs/demo/eval_sft"}, corpus="runs/demo/corpus", output="x")
    assert names(report) == ["data", "sids", "catalogue", "sft", "eval_sft"]
    assert names(settings("eval-beam", checkpoint="runs/demo/sft/below/it", corpus="runs/demo/corpus", output="x")) == [
        "data",
        "sids",
        "catalogue",
        "sft",
    ]


def test_what_cannot_be_conditioned_is_not_current(monkeypatch):
    step = steps_of("demo")[0]
    for error in (ArtefactError("gone"), OSError("gone"), KeyError("settings")):

        def fail(self, error=error):
            raise error

        monkeypatch.setattr(type(step.settings), "up_to_date", fail)
        assert not step.is_current()
    monkeypatch.setattr(type(step.settings), "up_to_date", lambda self: True)
    assert step.is_current()


class Started(list):
    """Names of stages in the order of their start, and the statuses with which some of them end."""

    def __init__(self):
        self.status = {}


@pytest.fixture
def runs(monkeypatch):
    """The stages that are started, by the names of their steps; "sids" is up to date, others are not."""
    started = Started()

    def run_words(words, threads, stdout=None):
        started.append(words[words.index("--config") + 1].partition("#")[2])
        return subprocess.CompletedProcess(words, started.status.get(started[-1], 0))

    monkeypatch.setattr(run, "run_words", run_words)
    monkeypatch.setattr(Job, "is_current", lambda self: self.key.step == "sids")
    return started


def test_what_a_stage_needs_is_made_first(runs):
    ensure_before(DEMO, settings("eval-beam", checkpoint="runs/demo/grpo", corpus="runs/demo/corpus", output="x"))
    assert runs == ["data", "catalogue", "sft", "grpo"]


def test_a_failing_stage_before_ends_the_command_with_its_status(runs):
    runs.status = {"sft": 3}
    with pytest.raises(SystemExit) as ended:
        ensure_before(DEMO, settings("eval-beam", checkpoint="runs/demo/grpo", corpus="runs/demo/corpus", output="x"))
    assert ended.value.code == 3
    assert runs == ["data", "catalogue", "sft"]


def test_the_other_processes_of_a_launch_make_nothing(runs, monkeypatch):
    waited = []
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(run, "join_for_training", lambda: waited.append("join"))
    monkeypatch.setattr(run, "wait_for_everyone", lambda: waited.append("wait"))
    ensure_before(DEMO, settings("eval-beam", checkpoint="runs/demo/grpo", corpus="runs/demo/corpus", output="x"))
    assert runs == []
    assert waited == ["join", "wait"]


def test_trainings_of_a_recipe_with_seeds_have_a_folder_a_seed(tmp_path, monkeypatch):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "output: out\nseeds: [3, 5]\nsteps:\n"
        "  data: {stage: prepare-data, source: demo}\n"
        "  sids: {stage: build-sids, corpus: '{data}', seed: 1}\n"
        "  one: {stage: train-sequential, model: sasrec, corpus: '{data}', protocol: rows, output: '{runs}/one'}\n"
        "  other: {config: '#one', stage: train-sequential, model: gru4rec, output: '{runs}/other'}\n"
        "  eval: {stage: eval-beam, corpus: '{data}', sids: '{sids}', checkpoint: '{one}/model'}\n"
        "  levels: {stage: calc-level, predictions: '{eval}'}\n"
        "  report: {corpus: '{data}', predictions: {one: '{one}', other: '{other}'}}\n"
    )
    jobs = plan_of(path)
    assert [key.title for key in jobs] == [
        "data", "sids", "one, seed 3", "other, seed 3", "eval, seed 3", "levels, seed 3",
        "one, seed 5", "other, seed 5", "eval, seed 5", "levels, seed 5", "report",
    ]  # fmt: skip
    by_title = {key.title: job for key, job in jobs.items()}
    for name in ("one", "other"):
        for seed in (3, 5):
            job = by_title[f"{name}, seed {seed}"]
            assert (job.settings.seed, job.settings.output) == (seed, f"out/{name}/seed-{seed}")
    monkeypatch.chdir(tmp_path)
    for job in jobs.values():  # what a step's process reads is what the plan says of it
        job.prepare()
        assert type(job.settings)(**config_values(type(job.settings), job.config)) == job.settings, job.title
    report = by_title["report"]
    assert report.settings.predictions == {"one": "out/one", "other": "out/other"}
    trained = {title for title in by_title if title.startswith(("one", "other"))}
    assert {key.title for key in report.needs} == {"data", *trained}
    assert by_title["eval, seed 5"].settings.checkpoint == "out/one/seed-5/model"
    assert by_title["eval, seed 5"].settings.output == "out/eval/seed-5/predictions"
    assert [key.title for key in by_title["eval, seed 5"].needs] == ["data", "sids", "one, seed 5"]
    assert by_title["levels, seed 5"].settings.predictions == "out/eval/seed-5/predictions"
    kind = STAGES["train-sequential"].config_class()
    assert config_values(kind, f"{path}#one")["output"] == "out/one/seed-3"


def test_seeds_of_the_command_are_those_of_every_training(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "output: out\nsteps:\n  sids: {stage: build-sids, corpus: c, seed: 1}\n"
        "  sft: {corpus: c, sids: '{sids}', seed: 2}\n  grpo: {corpus: c, checkpoint: '{sft}'}\n"
        "  eval: {stage: eval-beam, corpus: c, checkpoint: '{grpo}'}\n"
        "  report: {corpus: c, predictions: {GRPO: '{eval}'}}\n"
    )
    assert [key.title for key in plan_of(path)] == ["sids", "sft", "grpo", "eval", "report"]
    jobs = {key.title: job for key, job in Plan(read_recipe(path), parsed_seeds("7,8")).all().items()}
    assert [jobs[f"{step}, seed 8"].settings.seed for step in ("sft", "grpo")] == [8, 8]
    assert jobs["grpo, seed 8"].settings.checkpoint == "out/sft/seed-8"
    assert jobs["sids"].settings.seed == 1
    assert jobs["report"].settings.predictions == {"GRPO": "out/eval"}
    for text in ("", "4,4", "-1", "a", "1,", "1 2"):
        with pytest.raises(ConfigError, match=r"expected different whole numbers, such as 42,43,44"):
            parsed_seeds(text)


def test_settings_of_a_seed_are_read_from_a_folder_with_a_number_sign(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(f"steps:\n  sft: {{corpus: c, sids: s, output: '{tmp_path}/a#b'}}\n")
    for job in Plan(read_recipe(path), [7, 8]).all().values():
        job.prepare()
        assert config_values(type(job.settings), job.config) == job.values


def test_settings_of_the_command_replace_those_of_the_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(f"output: out\nsteps:\n  {SFT}\n  again: {{config: '#sft'}}\n")
    changes = parsed_changes(["sft.epochs=2", "sft.tasks={next_sid: 0.5}", "again.learning_rate=1e-4"])
    jobs = {key.title: job for key, job in Plan(read_recipe(path, changes), in_files=True).all().items()}
    assert (jobs["sft"].settings.epochs, jobs["sft"].settings.tasks) == (2, {"next_sid": 0.5})
    assert (jobs["again"].settings.epochs, jobs["again"].settings.learning_rate) == (2, 1e-4)
    assert jobs["sft"].config == "there.yaml" and jobs["again"].config == "out/again.yaml"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("sft.epochs", r"expected STEP\.SETTING=VALUE, such as sft\.epochs=2"),
        (".a=1", r"expected STEP\.SETTING=VALUE, such as sft\.epochs=2"),
        ("sft.=1", r"expected STEP\.SETTING=VALUE, such as sft\.epochs=2"),
        ("sft.epochs=[", r"--set sft\.epochs=\[: line 1, column 2: expected"),
        ("no.epochs=2", r"--set no: .* has no such step; its steps: sft"),
        ("sft.epoch=2", r"--set sft: unknown key 'epoch'"),
    ],
)
def test_settings_of_the_command_that_do_not_fit_are_refused(tmp_path, word, message):
    (tmp_path / "mine.yaml").write_text(f"steps:\n  {SFT}\n")
    with pytest.raises(ConfigError, match=message):
        Plan(read_recipe(tmp_path / "mine.yaml", parsed_changes([word]))).all()
