"""`minionerec init`: sizes follow from the data, and the recipe that is written is one that runs."""

import csv
import random
import sys
from dataclasses import replace

import pytest
import yaml
from support.examples import user_windows
from support.paths import ROOT

from minionerec.core.errors import ConfigError, DataError
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.bundle import load_bundle
from minionerec.pipeline.build_sids import run_build_sids
from minionerec.pipeline.cli import init as cli_init
from minionerec.pipeline.cli.init import _steps, measured_paces, recipe_text, run_init, shape_of
from minionerec.pipeline.cli.plan import plan_of
from minionerec.pipeline.cli.recipes import read_recipe
from minionerec.pipeline.cli.run import serving
from minionerec.pipeline.cli.sizes import Pace, Shape, choose, seconds
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.config.training import CatalogueTrainConfig
from minionerec.pipeline.prepare_data import run_prepare
from minionerec.pipeline.train_catalogue import run_catalogue
from minionerec.sid.embed.texts import item_texts, load_items

SMALL = Shape(50, 500, 100, 320, 100, 3.0, 0.0, False)
DEMO = Shape(600, 17_283, 2_200, 12_066, 2_300, 4.0, 0.0, False)
STEAM = Shape(3_593, 126_824, 10_369, 93_164, 17_431, 6.0, 0.19, False)
GAMES = Shape(16_874, 453_637, 50_597, 322_432, 60_000, 4.0, 0.46, True)
SHAPES = [SMALL, DEMO, STEAM, GAMES]


def tables(folder, items=50, users=100, each=5, columns=("user_id", "item_id", "timestamp")):
    """Two tables of a small shop."""
    rng = random.Random(0)
    rows = [
        (f"u{user}", rng.randrange(items), 1_600_000_000 + rng.randrange(10**7))
        for user in range(users)
        for _ in range(each)
    ]
    for name, header, content in [
        ("items", ("item_id", "title"), [(item, f"thing {item % 7} of kind {item % 5}") for item in range(items)]),
        ("interactions", columns, rows),
    ]:
        with open(folder / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([header, *content])


def init(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["minionerec init", *map(str, words)])
    run_init("minionerec init")


def values_of(shape):
    """Step to setting to value, without the reasons."""
    return {step: {name: value for name, (value, _) in found.items()} for step, found in choose(shape).items()}


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        (SMALL, {"sids": [16, [8, 8, 8]], "catalogue": [32, 1, 40, 16], "eval_catalogue": 10, "ties": "keep"}),
        (DEMO, {"sids": [48, [42, 42, 42]], "catalogue": [64, 1, 8, 64], "eval_catalogue": 50, "ties": "keep"}),
        (STEAM, {"sids": [64, [256] * 3], "catalogue": [128, 2, 8, 128], "eval_catalogue": 50, "ties": "keep"}),
        (GAMES, {"sids": [64, [256] * 3], "catalogue": [128, 1, 8, 128], "eval_catalogue": 50, "ties": "shuffle"}),
    ],
    ids=["small", "demo", "steam", "games"],
)
def test_shapes_and_their_settings(shape, wanted):
    found = values_of(shape)
    assert [found["sids"][name] for name in ("dimensions", "codebook_sizes")] == wanted["sids"]
    names = ("hidden_size", "towers", "epochs", "batch_size")
    assert [found["catalogue"][name] for name in names] == wanted["catalogue"]
    assert found["eval_catalogue"]["beams"] == wanted["eval_catalogue"]
    assert found["corpus"]["ties"] == wanted["ties"]
    assert found["catalogue"].get("loss") == ("sampled" if shape is GAMES else None)


@pytest.mark.parametrize(
    ("ties", "listed", "reason"),
    [
        (None, False, "the times of a user's neighbouring pairs are unknown"),
        (0.0, False, "none of a user's neighbouring pairs are within one second"),
        (0.001, False, "less than 1% of a user's neighbouring pairs are within one second; their order is not that of"),
        (0.19, False, "19% of a user's neighbouring pairs are within one second; their order is not that of the item"),
        (0.46, True, "46% of a user's neighbouring pairs are within one second; their order is that of the item ids"),
    ],
)
def test_the_reason_for_the_order_is_true_of_the_data(ties, listed, reason):
    found = choose(replace(STEAM, ties=ties, listed=listed))["corpus"]["ties"][1]
    assert found.startswith(reason) and ("their order" in found) == bool(ties)


@pytest.mark.parametrize(
    ("in_session", "context", "reason"),
    [
        (None, [], "times tell no sessions: they are unknown, without a unit, or coarser than half an hour"),
        (0.02, [], "2% of the examples come within half an hour of the item before: the gap tells little"),
        (0.4, ["gap"], "40% of the examples come within half an hour of the item before, the others later"),
        (0.97, [], "97% of the examples come within half an hour of the item before: the gap tells little"),
    ],
)
def test_the_gap_is_read_where_times_tell_who_stays_and_who_comes_back(in_session, context, reason):
    value, why = choose(replace(STEAM, in_session=in_session))["catalogue"]["context"]
    assert value == context and why.startswith(reason)


GROWING = {
    "items": {"sids": ("dimensions", "codebook_sizes"), "eval_catalogue": ("beams",)},
    "examples": {"catalogue": ("hidden_size", "vector_width"), "sft": ("hidden_size",)},
    "windows": {"catalogue": ("batch_size",), "sft": ("batch_size",)},
    "before": {"corpus": ("max_history",)},
}


def passes(values):
    """How often a window is seen, as it is or varied."""
    return values["epochs"] * (1 + values.get("variants", 0))


@pytest.mark.parametrize("what", GROWING)
def test_more_data_never_gives_a_smaller_size(what):
    """Along each axis, from small to very large, sizes grow and a window is seen less often."""
    changed = False
    for shape in SHAPES:
        before = None
        for factor in [0.1 * 1.5**step for step in range(24)]:
            value = getattr(shape, what) * factor
            now = values_of(replace(shape, **{what: value if what == "before" else max(10, int(value))}))
            if before is not None:
                for step, names in GROWING[what].items():
                    for name in names:
                        assert now[step][name] >= before[step][name], (shape, factor, name)
                        changed |= now[step][name] > before[step][name]
                for step in ("catalogue", "sft"):
                    assert passes(now[step]) <= passes(before[step])
            before = now
    assert changed


def test_larger_data_take_longer():
    times = [sum(seconds(choose(shape), shape).values()) for shape in (SMALL, DEMO, STEAM)]
    assert times == sorted(times) and times[2] < 45 * 60


def test_times_follow_the_paces_that_were_measured():
    chosen = choose(STEAM)
    usual = seconds(chosen, STEAM)
    one, two = (
        seconds(chosen, STEAM, {"catalogue": Pace(5.0, 0.001 * factor), "sft": Pace(7.0, 0.002 * factor)})
        for factor in (1, 2)
    )
    assert two["catalogue"] - one["catalogue"] == pytest.approx(0.001 * 17_431 * 8 * 2)
    assert two["sft"] - one["sft"] == pytest.approx(0.002 * 17_431 * 20)
    assert all(one[step] == usual[step] for step in ("corpus", "sids", "report"))
    assert two["eval_sft"] > one["eval_sft"] and two["eval_catalogue"] > one["eval_catalogue"]


@pytest.mark.parametrize(("minutes", "epochs", "towers"), [(40, 8, 2), (12, 8, 1), (8, 5, 1), (0.1, 1, 1)])
def test_the_catalogue_model_too_fits_the_minutes(minutes, epochs, towers, tmp_path):
    paces = {"catalogue": Pace(10.0, 0.004), "sft": Pace(5.0, 0.02)}
    chosen, times = _steps(STEAM, minutes, paces)
    settings = {key: value for key, (value, _) in chosen["catalogue"].items()}
    assert (settings["epochs"], settings["towers"]) == (epochs, towers) and "sft" not in chosen
    assert (sum(times.values()) <= 60 * minutes) == (minutes > 1)
    config = PrepareConfig(source="tables", items="items.csv", interactions="x.csv", output="x")
    (tmp_path / "mine.yaml").write_text(recipe_text(config, STEAM, "mine", minutes, paces))
    assert ("with more" in chosen["catalogue"]["epochs"][1]) == (epochs < 8)
    jobs = {key.step: job.settings for key, job in plan_of(tmp_path / "mine.yaml").items()}
    assert jobs["catalogue"].epochs == epochs and jobs["catalogue"].towers == towers


def test_a_trial_measures_both_trainings_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables(tmp_path)
    config = PrepareConfig(source="tables", items="items.csv", interactions="interactions.csv", output="x")
    shape = shape_of(config)
    assert measured_paces(config, shape) == {}  # of so few the other steps decide
    monkeypatch.setattr(cli_init, "_SHORT", 0.0)
    paces = measured_paces(config, shape)
    assert set(paces) == {"catalogue", "sft"} and all(pace.fixed + pace.window > 0 for pace in paces.values())
    assert {path.name for path in tmp_path.iterdir()} == {"items.csv", "interactions.csv"}


@pytest.mark.parametrize("shape", SHAPES, ids=["small", "demo", "steam", "games"])
def test_every_setting_fits_its_stage(shape, tmp_path):
    config = PrepareConfig(
        source="tables", items="items.csv", interactions="a: b.csv", columns={"user": "who"}, output="x"
    )
    file = tmp_path / "mine.yaml"
    file.write_text(recipe_text(config, shape, "mine", 40))
    jobs = {key.step: job.settings for key, job in plan_of(file).items()}
    assert jobs["corpus"].interactions == "a: b.csv" and jobs["corpus"].columns == {"user": "who"}
    assert jobs["catalogue"].hidden_size == values_of(shape)["catalogue"]["hidden_size"]
    assert jobs["catalogue"].patience and isinstance(jobs["catalogue"], CatalogueTrainConfig)
    assert jobs["eval_catalogue"].ks[-1] <= jobs["eval_catalogue"].beams
    assert ("sft" in jobs) == ("language model" in jobs["report"].predictions) == (shape is not GAMES)
    if "sft" in jobs:
        assert jobs["eval_sft"].beams == jobs["eval_catalogue"].beams


def test_the_recipe_of_fifty_items(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tables(tmp_path)
    init(monkeypatch, "items.csv", "interactions.csv", "mine")
    message = capsys.readouterr().out
    assert message.startswith("mine.yaml: 7 steps for 50 items, 100 users and 500 interactions, about ")
    assert message.endswith("Run them with: minionerec run mine\n")
    recipe = read_recipe("mine")
    assert recipe.settings.output == "runs/mine"
    jobs = plan_of("mine")
    assert serving(recipe, jobs) == ["Serve it: minionerec serve --checkpoint runs/mine/catalogue"]
    comments = [line for line in (tmp_path / "mine.yaml").read_text().splitlines() if line.strip().startswith("#")]
    assert len(comments) > 10
    init(monkeypatch, "items.csv", "interactions.csv", "my shop")
    assert capsys.readouterr().out.endswith("Run them with: minionerec run 'my shop'\n")


@pytest.mark.parametrize("unit", [1, 86_400], ids=["seconds", "days"])
def test_a_log_of_sessions_gives_a_model_that_reads_the_gap(tmp_path, monkeypatch, unit):
    """Each user comes twice, for three items each; in whole days nobody knows how long a session is."""
    monkeypatch.chdir(tmp_path)
    tables(tmp_path)
    rng = random.Random(0)
    with open(tmp_path / "interactions.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user_id", "item_id", "timestamp"])
        for user in range(100):
            begin = 1_600_000_000 + rng.randrange(10**7)
            times = [begin + day * 86_400 + minute * 60 for day in (0, 5) for minute in (0, 3, 9)]
            writer.writerows((f"u{user}", rng.randrange(50), time // unit * unit) for time in times)
    init(monkeypatch, "items.csv", "interactions.csv", "mine")
    jobs = {key.step: job.settings for key, job in plan_of("mine").items()}
    assert jobs["catalogue"].context == (["gap"] if unit == 1 else []) and jobs["sft"].context == []
    if unit == 1:
        run_prepare(jobs["corpus"])
        run_build_sids(jobs["sids"])
        run_catalogue(replace(jobs["catalogue"], epochs=1, evals_per_epoch=1))
        (gap,) = load_bundle(jobs["catalogue"].output).wording.context
        assert gap.values == ("up to 30 minutes", "later")


def with_events(folder, events, column="event"):
    """The tables with a view before each interaction."""
    tables(folder)
    with open(folder / "interactions.csv", newline="") as file:
        (header, *rows) = csv.reader(file)
    with open(folder / "interactions.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*header, column])
        for user, item, time in rows:
            writer.writerows([(user, item, int(time) - 60, events[0]), (user, item, time, events[-1])])


def test_the_purchases_of_a_log_with_views_are_its_targets(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with_events(tmp_path, ["view", "Purchase"])
    init(monkeypatch, "items.csv", "interactions.csv", "shop")
    assert "Events: view 500, Purchase 500. Targets are those of 'Purchase'" in capsys.readouterr().out
    corpus = yaml.safe_load((tmp_path / "shop.yaml").read_text())["steps"]["corpus"]
    assert corpus["targets"] == ["Purchase"]
    jobs = {key.step: job for key, job in plan_of(tmp_path / "shop.yaml").items()}
    result = run_prepare(jobs["corpus"].settings)
    assert result.counts["events"] == {"view": 500, "Purchase": 500} and result.counts["rows"] == 500
    init(monkeypatch, "items.csv", "interactions.csv", "views", "--targets", "view", "--where", "item_id != 3")
    corpus = yaml.safe_load((tmp_path / "views.yaml").read_text())["steps"]["corpus"]
    assert (corpus["targets"], corpus["where"]) == (["view"], "item_id != 3")
    with_events(tmp_path, ["view", "click"])
    init(monkeypatch, "items.csv", "interactions.csv", "clicks")
    assert "Events: view 500, click 500. Each row counts alike" in capsys.readouterr().out
    assert "targets" not in yaml.safe_load((tmp_path / "clicks.yaml").read_text())["steps"]["corpus"]


def test_columns_of_categories_are_part_of_the_text(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tables(tmp_path)
    with open(tmp_path / "items.csv", newline="") as file:
        (header, *rows) = csv.reader(file)
    with open(tmp_path / "items.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*header, "brand", "price", "tags", "link", "shop"])
        for number, row in enumerate(rows):
            tags = "|".join(["red", "blue", "green", "old", "new", "big"][number % 4 : number % 4 + 2 + number % 2])
            writer.writerow([*row, f"Brand{number % 6}", number / 4, tags, f"https://shop/{number}", "mine"])
    init(monkeypatch, "items.csv", "interactions.csv", "shop")
    printed = capsys.readouterr().out
    assert "brand (category), price (number), tags (category), link (text), shop (ignore)" in printed
    assert "No model reads link, shop" in printed
    corpus = yaml.safe_load((tmp_path / "shop.yaml").read_text())["steps"]["corpus"]
    assert corpus["text_columns"] == ["title", "description", "brand", "tags"]
    catalogue = yaml.safe_load((tmp_path / "shop.yaml").read_text())["steps"]["catalogue"]
    assert catalogue["item_columns"] == ["brand", "price", "tags"]
    jobs = {key.step: job for key, job in plan_of(tmp_path / "shop.yaml").items()}
    run_prepare(jobs["corpus"].settings)
    run_build_sids(jobs["sids"].settings)
    texts = item_texts(load_items(jobs["corpus"].folder))
    assert texts == item_texts(Corpus.load(jobs["corpus"].folder))
    assert texts[7] == "thing 0 of kind 2 Brand1 old|new|big"
    assert load_items(jobs["corpus"].folder).roles["price"] == "number"
    init(monkeypatch, "items.csv", "interactions.csv", "other", "--roles", "price=category", "tags=ignore")
    written = yaml.safe_load((tmp_path / "other.yaml").read_text())["steps"]
    assert written["corpus"]["roles"] == {"price": "category", "tags": "ignore"}
    assert written["catalogue"]["item_columns"] == ["brand", "price"]
    with pytest.raises(ConfigError, match="roles names 'colour', which the items do not have"):
        init(monkeypatch, "items.csv", "interactions.csv", "third", "--roles", "colour=category")


def test_items_without_any_text_get_vectors_of_interactions(tmp_path, monkeypatch):
    """The steps that read texts run to their end on what is written."""
    monkeypatch.chdir(tmp_path)
    tables(tmp_path)
    items = (tmp_path / "items.csv").read_text().splitlines()
    (tmp_path / "items.csv").write_text(
        "\n".join(line.split(",")[0] + ("," if row else ",title") for row, line in enumerate(items))
    )
    init(monkeypatch, "items.csv", "interactions.csv", "mine")
    jobs = {key.step: job.settings for key, job in plan_of("mine").items()}
    assert jobs["sids"].encoder == jobs["catalogue"].vectors == "interactions"
    run_prepare(jobs["corpus"])
    assert run_build_sids(jobs["sids"]).table.n_unique == 50
    assert run_catalogue(replace(jobs["catalogue"], epochs=1, evals_per_epoch=1)).counts["steps"] == 7


def test_the_shipped_recipe_of_steam_is_what_init_writes():
    positions = {name: f"$MINIONEREC_DATA/steam/{name}.csv" for name in ("items", "interactions")}
    text = recipe_text(PrepareConfig(source="tables", output="x", **positions), STEAM, "steam", 40)
    assert (ROOT / "configs/steam/language.yaml").read_text() == text


def test_the_demo_shop_has_its_own_shape():
    config = PrepareConfig(
        output="x",
        source="tables",
        items=str(ROOT / "data/demo/items.csv"),
        interactions=str(ROOT / "data/demo/interactions.csv"),
    )
    shape = shape_of(config)
    assert (shape.items, shape.interactions, shape.users, shape.listed) == (600, 17_283, 2_200, False)
    assert abs(shape.windows - DEMO.windows) < 100 and shape.examples == DEMO.examples


def test_windows_are_those_that_training_sees(tmp_path):
    tables(tmp_path, users=60, each=25)
    paths = {"items": str(tmp_path / "items.csv"), "interactions": str(tmp_path / "interactions.csv")}
    config = PrepareConfig(source="tables", output=str(tmp_path / "corpus"), **paths)
    shape = shape_of(config)
    run_prepare(config)
    corpus = Corpus.load(tmp_path / "corpus")
    assert shape.before <= 10 and shape.examples == len(corpus.train)
    assert len(user_windows(corpus)) == shape.windows > 60


NO_NAMES = ["a: b", "{sids}", "a\tb", "a\n", "", "/", "..", "../x", "a/../b", "/tmp/x", "-dash", ".hidden", "a//b"]


@pytest.mark.parametrize("name", [*NO_NAMES, "x" * 61, "own/_base"])
def test_a_name_that_is_none_is_refused_and_nothing_is_written(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=r"^NAME is .*expected letters, digits, spaces.*Choose another\.$"):
        init(monkeypatch, "--", "items.csv", "interactions.csv", name)
    assert sorted(tmp_path.rglob("*")) == before


def test_two_hyphens_are_no_name(monkeypatch):
    with pytest.raises(ConfigError, match=r"^-- is not a value\. See --help"):
        init(monkeypatch, "--", "items.csv", "interactions.csv", "--")


def test_recipes_of_one_name_in_two_folders_have_folders_of_their_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tables(tmp_path)
    for name in ("eu/shop", "us/shop.yaml"):
        init(monkeypatch, "items.csv", "interactions.csv", name)
        assert capsys.readouterr().out.endswith(f"minionerec run {name}\n")
    outputs = [{str(job.folder) for job in plan_of(name).values()} for name in ("eu/shop", "us/shop")]
    assert all(path.startswith("runs/eu/shop/") for path in outputs[0])
    assert all(path.startswith("runs/us/shop/") for path in outputs[1])


@pytest.mark.parametrize("column", [False, True], ids=["path", "column"])
def test_braces_that_a_recipe_would_fill_are_refused_before_anything_is_read(column, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "exp{2024}"
    folder.mkdir()
    tables(folder)
    words = ["exp{2024}/items.csv", "exp{2024}/interactions.csv", "mine"]
    wrong = "{2024}"
    if column:
        tables(tmp_path)
        words, wrong = ["items.csv", "interactions.csv", "mine", "--columns", "user={runs}"], "{runs}"
    with pytest.raises(ConfigError, match=rf"but a recipe reads \{wrong} as a placeholder\. Rename it without braces"):
        init(monkeypatch, *words)
    assert not (tmp_path / "mine.yaml").exists()


def test_a_recipe_that_cannot_be_planned_is_not_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own/_base.yaml").write_text("steps: {corpus: {stage: prepare-data}}\n")
    with pytest.raises(ConfigError, match=r"^mine\.yaml, line \d+: steps\.sids: has no stage"):
        init(monkeypatch, "items.csv", "interactions.csv", "mine")
    assert not (tmp_path / "mine.yaml").exists()


def test_a_file_that_appears_meanwhile_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables(tmp_path)

    def meanwhile(config):
        (tmp_path / "mine.yaml").write_text("another's\n")
        return shape_of(config)

    monkeypatch.setattr("minionerec.pipeline.cli.init.shape_of", meanwhile)
    with pytest.raises(ConfigError, match=r"^mine\.yaml: exists already"):
        init(monkeypatch, "items.csv", "interactions.csv", "mine")
    assert (tmp_path / "mine.yaml").read_text() == "another's\n"


def test_a_missing_column_names_the_flag(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables(tmp_path, columns=("who", "item_id", "timestamp"))
    with pytest.raises(DataError, match=r"column 'user_id' is missing.*--columns user=NAME"):
        init(monkeypatch, "items.csv", "interactions.csv", "mine")
    init(monkeypatch, "items.csv", "interactions.csv", "mine", "--columns", "user=who")
    assert yaml.safe_load((tmp_path / "mine.yaml").read_text())["steps"]["corpus"]["columns"] == {"user": "who"}


@pytest.mark.parametrize(
    ("items", "words", "message"),
    [
        (50, ["mine.yaml"], r"^mine\.yaml: exists already\. Give another NAME, or remove it\.$"),
        (9, ["new"], r"^items\.csv: holds 9 items; .* at least 10"),
        (50, ["items.csv/mine"], r"^items\.csv/mine\.yaml: cannot be written \(.*\)\. Give another NAME"),
        (50, ["new", "--minutes", "soon"], r"^--minutes is 'soon'; expected a number"),
        (50, ["new", "--max_bad_rows", "-1"], r"^max_bad_rows is -1; it must be at least 0"),
    ],
)
def test_a_recipe_that_cannot_be_made_is_refused_and_nothing_is_written(tmp_path, monkeypatch, items, words, message):
    monkeypatch.chdir(tmp_path)
    tables(tmp_path, items=items)
    (tmp_path / "mine.yaml").write_text("mine\n")
    files = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=message):
        init(monkeypatch, "items.csv", "interactions.csv", *words)
    assert sorted(tmp_path.rglob("*")) == files and (tmp_path / "mine.yaml").read_text() == "mine\n"
