"""What a study's file may say, what its cases become, and one line for everything that is wrong in it."""

import pytest
import yaml
from support.paths import ROOT
from support.studies import TINY, write_study

from minionerec.cli.study import wanted_jobs, with_changes
from minionerec.cli.study_file import all_steps, find_study, read_study
from minionerec.cli.study_plan import Key, Plan
from minionerec.cli.study_search import check_search
from minionerec.core.errors import ConfigError

SHIPPED = sorted((ROOT / "configs" / "studies").glob("*.yaml"))


def plan_of(path):
    study = read_study(str(path))
    return study, Plan(study).all()


def test_a_study_is_every_step_of_every_case_and_seed(tmp_path):
    study, jobs = plan_of(write_study(tmp_path))
    titles = [key.title for key in jobs]
    assert titles[:2] == ["shop/prepared/corpus", "shop/prepared/sids"]
    assert titles[2:10] == [
        "shop/labels/model, seed 1",
        "shop/labels/valid, seed 1",
        "shop/labels/test, seed 1",
        "shop/slower/model, seed 1",
        "shop/slower/valid, seed 1",
        "shop/slower/test, seed 1",
        "shop/sharpened/grpo, seed 1",
        "shop/sharpened/test, seed 1",
    ]
    assert len(titles) == 2 + 2 * 8
    grpo = jobs[Key("shop", "sharpened", "grpo", 2)]
    assert grpo.needs == (Key("shop", "prepared", "corpus", None), Key("shop", "labels", "model", 2))
    assert grpo.step.settings.checkpoint == f"{tmp_path}/runs/shop/labels/model/seed-2"
    assert grpo.step.settings.seed == 2 and grpo.step.settings.learning_rate == 0.02
    assert str(grpo.output) == f"{tmp_path}/runs/shop/sharpened/grpo/seed-2"
    lists = jobs[Key("shop", "labels", "test", 1)]
    assert str(lists.output) == f"{tmp_path}/runs/shop/labels/test/seed-1/predictions"
    assert lists.step.settings.seed == 0  # the bootstrap's, which is no training's
    assert study.cases["slower"].label == "a slower rate"
    assert str(jobs[Key("shop", "prepared", "corpus", None)].output) == f"{tmp_path}/runs/corpus"


def test_a_case_like_another_shares_the_steps_before_its_first_change(tmp_path):
    text = yaml.safe_load(TINY.format(runs=tmp_path))
    more = {"like": "sharpened", "set": {"grpo": {"rewards": {"rule": 1}}}}
    study, jobs = plan_of(write_study(tmp_path, cases={**text["cases"], "rule": more, "wide": rule_of_test("rule")}))
    assert [step.name for step in study.cases["rule"].steps] == ["grpo", "test"]
    assert [step.name for step in study.cases["wide"].steps] == ["test"]
    assert [step.name for step in all_steps(study.cases["wide"], study.cases)] == ["grpo", "test"]
    wide = jobs[Key("shop", "wide", "test", 1)]
    assert wide.step.settings.checkpoint.endswith("shop/rule/grpo/seed-1") and wide.step.settings.beams == 60
    assert jobs[Key("shop", "rule", "grpo", 1)].step.settings.rewards == {"rule": 1.0}


def rule_of_test(like):
    return {"like": like, "set": {"test": {"beams": 60}}}


def test_a_case_of_one_seed_serves_all_and_a_step_may_be_run_once(tmp_path):
    text = yaml.safe_load(TINY.format(runs=tmp_path))
    text["cases"]["labels"]["seeds"] = [7]
    text["cases"]["own"] = {
        "steps": [
            {"build-sids": {"as": "codes", "once": True, "set": {"corpus": "{data.corpus}", "seed": 5}}},
            {"sft": {"set": {"corpus": "{data.corpus}", "sids": "{codes}"}}},
            {"eval-beam": {"as": "test", "set": {"checkpoint": "{sft}", "corpus": "{data.corpus}"}}},
        ]
    }
    study, jobs = plan_of(write_study(tmp_path, cases=text["cases"]))
    assert study.cases["slower"].seeds == (7,)  # as what it is like
    for seed in (1, 2):
        assert jobs[Key("shop", "sharpened", "grpo", seed)].needs[1] == Key("shop", "labels", "model", 7)
        assert Key("shop", "own", "codes", None) in jobs[Key("shop", "own", "sft", seed)].needs
    assert jobs[Key("shop", "own", "codes", None)].step.settings.seed == 5


def test_placeholders_are_filled_from_the_inside_out(tmp_path):
    steps = [{"sft": {"set": {"corpus": "{data.corpus}", "sids": "{data.{case}}"}}}]
    lists = [{"eval-beam": {"as": "test", "set": {"checkpoint": "{sft}"}}}]
    _, jobs = plan_of(write_study(tmp_path, steps=steps + lists, cases={"sids": None, "corpus": None}))
    assert jobs[Key("shop", "sids", "sft", 1)].step.settings.sids.endswith("/prepared/sids")
    assert jobs[Key("shop", "corpus", "sft", 1)].step.settings.sids.endswith("runs/corpus")


def test_a_stage_that_takes_all_seeds_is_one_step(tmp_path):
    steps = [{"train-sequential": {"set": {"corpus": "{data.corpus}", "protocol": "rows", "epochs": 1}}}]
    path = write_study(tmp_path, steps=steps, cases={"sasrec": None}, compare={"train-sequential": None})
    study, jobs = plan_of(path)
    job = jobs[Key("shop", "sasrec", "train-sequential", None)]
    assert (job.step.settings.seed, job.step.settings.seeds) == (1, 2)
    assert str(job.output) == f"{tmp_path}/runs/shop/sasrec/train-sequential"
    some = wanted_jobs(study, None, [2])
    assert some[job.key].step.settings.seeds == 1 and some[job.key].step.settings.seed == 2
    with pytest.raises(ConfigError, match=r"takes its seeds one after another, so \[1, 3\] must be in a row"):
        plan_of(write_study(tmp_path, steps=steps, cases={"sasrec": None}, seeds=[1, 3]))


def test_only_and_seeds_choose_and_bring_what_is_needed(tmp_path):
    study = read_study(str(write_study(tmp_path)))
    assert [key.title for key in wanted_jobs(study, ["sharpened"], [2])] == [
        "shop/prepared/corpus",
        "shop/prepared/sids",
        "shop/labels/model, seed 2",
        "shop/sharpened/grpo, seed 2",
        "shop/sharpened/test, seed 2",
    ]
    with pytest.raises(ConfigError, match=r"--only blunt: .* has no such case. Its cases: labels, slower, sharpened"):
        wanted_jobs(study, ["blunt"], None)
    with pytest.raises(ConfigError, match=r"--seeds 9: .* has no such seed. Its seeds: 1, 2\."):
        wanted_jobs(study, None, [9])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_study_has_valid_settings_in_all_its_steps(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    study = read_study(path.stem)
    check_search(study)
    jobs = wanted_jobs(study, None, None)
    assert len({key.case for key in jobs}) == len(study.cases) + any(study.data.values())
    texts = [value for job in jobs.values() for value in job.values.values() if isinstance(value, str)]
    assert texts and not [text for text in texts if "{" in text]
    assert path.read_text().startswith("#") and f"minionerec study {path.stem}" in path.read_text()
    assert study.settings.output == f"runs/studies/{path.stem}"


STEP = {"sft": {"set": {"corpus": "{data.corpus}", "sids": "{data.sids}"}}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sead": 1}, r"study.yaml: unknown key 'sead'. Known keys: output, seeds, jobs, threads, launch, data, steps"),
        ({"seeds": []}, r"study.yaml: seeds is empty; give --seeds: seeds of every case"),
        ({"seeds": [1, 1]}, r"study.yaml: seeds names one twice"),
        ({"seeds": ["one"]}, r"study.yaml: seeds is 'one'; expected a whole number"),
        ({"jobs": 0}, r"study.yaml: jobs is 0; it must be at least 1"),
        ({"data": {}}, r"study.yaml: data is empty; name at least one"),
        ({"cases": {"seed": {}}}, r"cases: 'seed' cannot be a name; expected letters.* and none of prepared"),
        ({"cases": {"a b": {}}}, r"cases: 'a b' cannot be a name"),
        ({"cases": {"shop": {"steps": [STEP]}}}, r"'shop' is both a data set and a case"),
        ({"cases": {"a": {}}}, r"cases.a: has no steps; give it steps, or like and set"),
        ({"cases": {"a": {"sepps": []}}}, r"cases.a: unknown key 'sepps'. Known keys: label, like, data, seeds"),
        ({"cases": {"a": {"steps": [STEP], "data": ["b"]}}}, r"cases.a: data names 'b'; known: shop"),
        ({"cases": {"a": {"steps": ["sft"]}}}, r"cases.a.steps: expected a list of steps, each `- STAGE: "),
        ({"cases": {"a": {"steps": [{"sfd": {}}]}}}, r"cases.a.steps.sfd: no such stage; known: prepare-data"),
        ({"cases": {"a": {"steps": [{"calc-level": {}}]}}}, r"cases.a.steps.calc-level: this stage only prints"),
        (
            {"cases": {"a": {"steps": [{"sft": {"name": "x"}}]}}},
            r"unknown key 'name'. Known keys: config, set, as",
        ),
        (
            {"cases": {"a": {"steps": [STEP, STEP]}}},
            r"cases.a.steps: two steps are called 'sft'; give",
        ),
        ({"cases": {"a": {"like": "b"}}}, r"cases.a: like is 'b'; known cases: a"),
        ({"cases": {"a": {"like": "b", "set": {}}, "b": {"like": "a"}}}, r"cases.a: is like itself, by way of a, b"),
        ({"cases": {"b": {"steps": [STEP]}, "a": {"like": "b"}}}, r"cases.a.set is empty; say what is changed"),
        (
            {"cases": {"b": {"steps": [STEP]}, "a": {"like": "b", "steps": [STEP]}}},
            r"cases.a: has both like and steps",
        ),
        (
            {"cases": {"b": {"steps": [STEP]}, "a": {"like": "b", "set": {"sftt": {}}}}},
            r"cases.a.set: no step 'sftt'; its steps: sft",
        ),
        (
            {"cases": {"b": {"steps": [STEP]}, "a": {"like": "b", "set": {"sft": {"epoch": 1}}}}},
            r"study.yaml: cases.a.set.sft: unknown key 'epoch'",
        ),
        (
            {"cases": {"b": {"steps": [STEP]}, "a": {"like": "b", "set": {"sft": {"epochs": "many"}}}}},
            r"study.yaml: cases.a.set.sft: epochs is 'many'; expected a number",
        ),
        (
            {"cases": {"b": {"steps": [STEP]}, "a": {"like": "b", "set": {"sft": {"epochs": 0}}}}},
            r"study.yaml: cases.a.set.sft: epochs is 0.0; it must be above 0",
        ),
        (
            {"cases": {"a": {"steps": [{"sft": {"set": {"sids": "{data.codes}"}}}]}}},
            r"cases.a.steps.sft.set: sids names {data.codes}, which stands for nothing here; known: {data}, {runs}, "
            r"{case}, {seed}, {data.corpus}, {data.sids} and {CASE.STEP}",
        ),
        (
            {"cases": {"a": {"steps": [{"sft": {"set": {"sids": {"data.sids": None}}}}]}}},
            r'sids is a mapping; put the placeholder in quotes: "{data.sids}"',
        ),
        (
            {"cases": {"a": {"steps": [{"sft": {"once": True, "set": {"output": "x/{seed}"}}}]}}},
            r"output names {seed}, which stands for nothing here",
        ),
        (
            {"cases": {"a": {"steps": [{"sft": {"set": {"output": "x"}}}]}}},
            r"shop/a/sft, seed 1 and shop/a/sft, seed 2 both write x; give each an output of its own",
        ),
        (
            {"cases": {"a": {"steps": [{"eval-beam": {"set": {"output": "x"}}}]}}},
            r"the study lays predictions out by seed; leave output out",
        ),
        (
            {"cases": {"a": {"steps": [{"eval-beam": {"once": True}}]}}},
            r"predictions are compared by seed, so a case does not make them once",
        ),
        (
            {
                "cases": {
                    "a": {"steps": [STEP]},
                    "b": {"steps": [{"grpo": {"once": True, "set": {"checkpoint": "{a.sft}"}}}]},
                }
            },
            r"checkpoint reads a.sft, which is made for each seed; this step is run once",
        ),
        (
            {
                "cases": {
                    "a": {"steps": [STEP], "seeds": [5, 6]},
                    "b": {"steps": [{"grpo": {"set": {"checkpoint": "{a.sft}"}}}]},
                }
            },
            r"checkpoint reads a.sft, which has no seed 1, but \[5, 6\]",
        ),
        (
            {
                "cases": {
                    "a": {"steps": [{"grpo": {"set": {"checkpoint": "{b.grpo}"}}}]},
                    "b": {"steps": [{"grpo": {"set": {"checkpoint": "{a.grpo}"}}}]},
                }
            },
            r"needs itself, by way of other steps",
        ),
        ({"compare": {"tests": {}}}, r"compare.tests.of is 'tests'; steps with predictions: test, valid"),
        ({"compare": {"test": {"metrics": ["HR"]}}}, r"compare.test: unknown metric 'HR'"),
        ({"compare": {"test": {"runs": {"a": "b"}}}}, r"compare.test: runs is the study's own to say; leave it out"),
        ({"launch": "ds_configs/zero2_4gpu.yaml", "jobs": 2}, r"jobs is 2, but each launch by .* starts 4 processes"),
    ],
)
def test_a_mistake_is_one_line_with_file_and_key(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message) as raised:
        study = with_changes(read_study(str(write_study(tmp_path, **changes))), None, None)
        wanted_jobs(study, None, None)
    assert "\n" not in str(raised.value)


def test_a_mistake_in_a_file_of_settings_names_that_file(tmp_path):
    (tmp_path / "mine.yaml").write_text("epochs: 2\nlearning_rte: 1\n")
    path = write_study(tmp_path, cases={"a": {"steps": [{"sft": "mine.yaml"}]}}, compare={"test": None})
    with pytest.raises(ConfigError, match=r"mine.yaml: unknown key 'learning_rte'"):
        plan_of(path)
    (tmp_path / "mine.yaml").write_text("epochs: 2\n")
    _, jobs = plan_of(path)
    assert jobs[Key("shop", "a", "sft", 1)].step.settings.epochs == 2
    with pytest.raises(ConfigError, match=r"nowhere: no study there; expected a YAML file, or the name of a shipped"):
        find_study("nowhere")
