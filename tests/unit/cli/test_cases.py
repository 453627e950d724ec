"""What a recipe with cases may say, what its cases become, and one line for everything that is wrong in it."""

import pytest
import yaml
from support.studies import TINY, write_study

from minionerec.cli.plan import Key, Plan
from minionerec.cli.recipes import all_steps, read_recipe
from minionerec.cli.run import wanted_jobs, with_changes
from minionerec.core.errors import ConfigError


def read_and_plan(path):
    study = read_recipe(path)
    return study, Plan(study).all()


def test_a_study_is_every_step_of_every_case_and_seed(tmp_path):
    study, jobs = read_and_plan(write_study(tmp_path))
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
    assert grpo.settings.checkpoint == f"{tmp_path}/runs/shop/labels/model/seed-2"
    assert grpo.settings.seed == 2 and grpo.settings.learning_rate == 0.02
    assert str(grpo.output) == f"{tmp_path}/runs/shop/sharpened/grpo/seed-2"
    lists = jobs[Key("shop", "labels", "test", 1)]
    assert str(lists.output) == f"{tmp_path}/runs/shop/labels/test/seed-1/predictions"
    assert lists.settings.seed == 0  # the bootstrap's, which is no training's
    assert study.cases["slower"].label == "a slower rate"
    assert str(jobs[Key("shop", "prepared", "corpus", None)].output) == f"{tmp_path}/runs/corpus"


def test_a_case_like_another_shares_the_steps_before_its_first_change(tmp_path):
    text = yaml.safe_load(TINY.format(runs=tmp_path))
    more = {"base": "sharpened", "steps": {"grpo": {"rewards": {"rule": 1}}}}
    study, jobs = read_and_plan(
        write_study(tmp_path, cases={**text["cases"], "rule": more, "wide": rule_of_test("rule")})
    )
    assert [step.name for step in study.cases["rule"].steps] == ["grpo", "test"]
    assert [step.name for step in study.cases["wide"].steps] == ["test"]
    assert [step.name for step in all_steps(study.cases["wide"], study.cases)] == ["grpo", "test"]
    wide = jobs[Key("shop", "wide", "test", 1)]
    assert wide.settings.checkpoint.endswith("shop/rule/grpo/seed-1") and wide.settings.beams == 60
    assert jobs[Key("shop", "rule", "grpo", 1)].settings.rewards == {"rule": 1.0}


def test_a_case_with_seeds_of_its_own_reads_them_whatever_seeds_are_asked_for(tmp_path):
    text = yaml.safe_load(TINY.format(runs=tmp_path))
    own = {"base": "sharpened", "seeds": [1], "steps": {"grpo": {"rewards": {"rule": 1}}}}
    study = read_recipe(write_study(tmp_path, cases={**text["cases"], "own": own}))
    jobs = wanted_jobs(Plan(study), None, [2])
    read = {key.case: job.settings.checkpoint for key, job in jobs.items() if key.step == "grpo"}
    assert read["sharpened"].endswith("labels/model/seed-2") and read["own"].endswith("labels/model/seed-1")


def rule_of_test(base):
    return {"base": base, "steps": {"test": {"beams": 60}}}


def test_a_case_of_one_seed_serves_all_and_a_step_may_be_run_once(tmp_path):
    text = yaml.safe_load(TINY.format(runs=tmp_path))
    text["cases"]["labels"]["seeds"] = [7]
    text["cases"]["own"] = {
        "steps": {
            "codes": {"stage": "build-sids", "once": True, "corpus": "{data.corpus}", "seed": 5},
            "sft": {"corpus": "{data.corpus}", "sids": "{codes}"},
            "test": {"stage": "eval-beam", "checkpoint": "{sft}", "corpus": "{data.corpus}"},
        }
    }
    study, jobs = read_and_plan(write_study(tmp_path, cases=text["cases"]))
    assert study.cases["slower"].seeds == (7,)  # as what it is like
    for seed in (1, 2):
        assert jobs[Key("shop", "sharpened", "grpo", seed)].needs[1] == Key("shop", "labels", "model", 7)
        assert Key("shop", "own", "codes", None) in jobs[Key("shop", "own", "sft", seed)].needs
    assert jobs[Key("shop", "own", "codes", None)].settings.seed == 5


def test_placeholders_are_filled_from_the_inside_out(tmp_path):
    steps = {"sft": {"corpus": "{data.corpus}", "sids": "{data.{case}}"}}
    lists = {"test": {"stage": "eval-beam", "checkpoint": "{sft}", "corpus": "{data.corpus}"}}
    _, jobs = read_and_plan(write_study(tmp_path, steps=steps | lists, cases={"sids": None, "corpus": None}))
    assert jobs[Key("shop", "sids", "sft", 1)].settings.sids.endswith("/prepared/sids")
    assert jobs[Key("shop", "corpus", "sft", 1)].settings.sids.endswith("runs/corpus")


def test_a_training_that_writes_predictions_beside_its_model_has_a_folder_a_seed(tmp_path):
    steps = {"train-sequential": {"corpus": "{data.corpus}", "protocol": "rows", "epochs": 1}}
    path = write_study(tmp_path, steps=steps, cases={"sasrec": None}, compare={"train-sequential": None})
    study, jobs = read_and_plan(path)
    for seed in (1, 2):
        job = jobs[Key("shop", "sasrec", "train-sequential", seed)]
        assert job.settings.seed == seed
        assert str(job.output) == f"{tmp_path}/runs/shop/sasrec/train-sequential/seed-{seed}"
    assert [key.seed for key in wanted_jobs(Plan(study), None, [2]) if key.case == "sasrec"] == [2]


def test_only_and_seeds_choose_and_bring_what_is_needed(tmp_path):
    study = Plan(read_recipe(write_study(tmp_path)))
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


STEP = {"sft": {"corpus": "{data.corpus}", "sids": "{data.sids}"}}


def a_case(step, name="sft", **more):
    """Cases with one case of one step."""
    return {"cases": {"a": {"steps": {name: step}, **more}}}


def changed(**step):
    """Cases of which the second changes the first."""
    return {"cases": {"b": {"steps": STEP}, "a": {"base": "b", "steps": {"sft": step}}}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sead": 1},
            r"study.yaml, line \d+: sead: unknown key 'sead'. Known keys: output, seeds, jobs, threads, launch",
        ),
        (
            {"seeds": []},
            r"study.yaml: has data, but no seeds; a recipe with cases needs output, seeds, data and cases",
        ),
        ({"seeds": [1, 1]}, r"study.yaml, line 2: seeds names one twice"),
        ({"seeds": ["one"]}, r"study.yaml, line 2: seeds is 'one'; expected a whole number"),
        ({"jobs": 0}, r"study.yaml, line \d+: jobs is 0; it must be at least 1"),
        ({"data": {}}, r"study.yaml, line \d+: data is empty; name at least one"),
        ({"cases": {"seed": {}}}, r"cases.seed: 'seed' cannot be a name; expected letters.* and none of prepared"),
        ({"cases": {"a b": {}}}, r"'a b' cannot be a name"),
        ({"cases": {"shop": {"steps": STEP}}}, r"'shop' is both a data set and a case"),
        ({"cases": {"a": {}}}, r"cases.a: has no steps; give it `steps`, or a `base` and changes"),
        ({"cases": {"a": {"sepps": {}}}}, r"cases.a: unknown key 'sepps'. Known keys: label, base, data, seeds"),
        (a_case(STEP["sft"], data=["b"]), r"cases.a: data names 'b'; known: shop"),
        ({"cases": {"a": {"steps": ["sft"]}}}, r"cases.a.steps is \['sft'\]; expected a mapping"),
        (a_case({"stage": "sfd"}), r"line \d+: cases.a.steps.sft.stage: no stage 'sfd'; known: prepare-data"),
        (a_case({}, "model"), r"cases.a.steps.model: has no stage, and no step of the base has this name; give it"),
        (a_case({"stage": "calc-level"}, "levels"), r"cases.a.steps.levels: this stage only prints; leave it out"),
        (a_case(STEP["sft"], "log"), r"'log' cannot be the name of a step here|cases.a.steps.log: has no stage"),
        (
            a_case({"config": "#valid"}),
            r"cases.a.steps.sft: config is '#valid', but there is no such step; the others: n",
        ),
        (a_case({"config": "#sft"}), r"config is '#sft', which refers back to the step itself"),
        ({"cases": {"a": {"base": "b"}}}, r"cases.a: base is 'b'; known cases: a"),
        (
            {"cases": {"a": {"base": "b", "steps": STEP}, "b": {"base": "a"}}},
            r"cases.a: is based on itself, by way of a, b",
        ),
        (
            {"cases": {"b": {"steps": STEP}, "a": {"base": "b"}}},
            r"cases.a: changes nothing; say what, as `steps: {STEP",
        ),
        (
            {"cases": {"b": {"steps": STEP}, "a": {"base": "b", "steps": {"sftt": {"epochs": 1}}}}},
            r"cases.a.steps.sftt: has no stage, .* or the name of one of the others: sft",
        ),
        (changed(epoch=1), r"study.yaml, line \d+: cases.a.steps.sft: unknown key 'epoch'"),
        (changed(epochs="many"), r"study.yaml, line \d+: cases.a.steps.sft: epochs is 'many'; expected a number"),
        (changed(epochs=0), r"study.yaml, line \d+: cases.a.steps.sft: epochs is 0.0; it must be above 0"),
        (
            a_case({"sids": "{data.codes}"}),
            r"cases.a.steps.sft: sids names {data.codes}, which is unknown here; known: {runs}, {data}, "
            r"{case}, {seed}, {data.corpus}, {data.sids} and {CASE.STEP}",
        ),
        (a_case({"sids": {"data.sids": None}}), r'sids is a mapping; put the placeholder in quotes: "{data.sids}"'),
        (a_case({"once": True, "output": "x/{seed}"}), r"output names {seed}, which is unknown here"),
        (
            a_case({**STEP["sft"], "output": "x"}),
            r"shop/a/sft, seed 1 and shop/a/sft, seed 2 both write x; give each an output of its own",
        ),
        (a_case({"output": "x"}, "eval-beam"), r"predictions of cases are laid out by seed; leave output out"),
        (a_case({"once": True}, "eval-beam"), r"predictions are compared by seed, so a case does not make them once"),
        (
            {
                "cases": {
                    "a": {"steps": STEP},
                    "b": {"steps": {"grpo": {"once": True, "corpus": "c", "checkpoint": "{a.sft}"}}},
                }
            },
            r"checkpoint reads a.sft, which is made for each seed; this step is run once",
        ),
        (
            {
                "cases": {
                    "a": {"steps": STEP, "seeds": [5, 6]},
                    "b": {"steps": {"grpo": {"corpus": "c", "checkpoint": "{a.sft}"}}},
                }
            },
            r"checkpoint reads a.sft, which has no seed 1, but \[5, 6\]",
        ),
        (
            {
                "cases": {
                    "a": {"steps": {"grpo": {"corpus": "c", "checkpoint": "{b.grpo}"}}},
                    "b": {"steps": {"grpo": {"corpus": "c", "checkpoint": "{a.grpo}"}}},
                }
            },
            r"needs itself, by way of other steps",
        ),
        ({"compare": {"tests": {}}}, r"compare.tests.of is 'tests'; steps with predictions: test, valid"),
        ({"compare": {"test": {"metrics": ["HR"]}}}, r"compare.test: unknown metric 'HR'"),
        ({"compare": {"test": {"runs": {"a": "b"}}}}, r"compare.test: runs is set by the recipe itself; leave it out"),
        ({"launch": "ds_configs/zero2_4gpu.yaml", "jobs": 2}, r"jobs is 2, but each launch by .* starts 4 processes"),
    ],
)
def test_a_mistake_is_one_line_with_file_and_key(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message) as raised:
        study = with_changes(read_recipe(write_study(tmp_path, **changes)), None, None)
        wanted_jobs(Plan(study), None, None)
    assert "\n" not in str(raised.value)


def test_a_mistake_in_a_file_of_settings_names_that_file(tmp_path):
    (tmp_path / "mine.yaml").write_text("corpus: c\nsids: s\nepochs: 2\nlearning_rte: 1\n")
    cases = {"a": {"steps": {"sft": {"config": "mine.yaml"}}}}
    path = write_study(tmp_path, cases=cases, compare={"test": None})
    with pytest.raises(ConfigError, match=r"mine.yaml: unknown key 'learning_rte'"):
        read_and_plan(path)
    (tmp_path / "mine.yaml").write_text("corpus: c\nsids: s\nepochs: 2\n")
    _, jobs = read_and_plan(path)
    assert jobs[Key("shop", "a", "sft", 1)].settings.epochs == 2


def test_a_base_gives_data_sets_and_cases_that_are_changed_step_by_step(tmp_path):
    """Of a recipe with cases another one changes a setting of a case, and adds a case."""
    write_study(tmp_path)
    more = {"base": "study", "cases": {"slower": {"steps": {"model": {"epochs": 7}}}, "long": rule_of_test("labels")}}
    (tmp_path / "more.yaml").write_text(yaml.safe_dump(more))
    study, jobs = read_and_plan(tmp_path / "more.yaml")
    assert list(study.cases) == ["labels", "slower", "sharpened", "long"]
    model = jobs[Key("shop", "slower", "model", 2)].settings
    assert (model.epochs, model.learning_rate) == (7, 0.03)
    assert study.cases["slower"].label == "a slower rate"
    assert jobs[Key("shop", "long", "test", 1)].settings.beams == 60
