"""README and docs: commands work, links and paths lead somewhere, computed numbers are those of the computation.

A fenced block marked bash is run in a copy of the project, in the order of its page. So is one marked diff,
which is applied to the copy, and one marked python whose first line is `# path/of/a/file.py`, which is written there.
Blocks of README.md and docs/results, and those behind the line `<!-- test: parse -->`, take long or need a GPU: each of
their commands is taken apart instead. Scripts, files, recipes and make targets must exist, and every flag and setting
must fit the stage.
"""

import ast
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from itertools import chain, takewhile
from pathlib import Path

import pandas as pd
import pytest
import yaml
from support.paths import ROOT
from support.preloaded import python
from support.scripts import study

from minionerec import api
from minionerec.pipeline.cli.command import demo_step
from minionerec.pipeline.cli.doctor import doctor_arguments
from minionerec.pipeline.cli.init import init_arguments
from minionerec.pipeline.cli.main import recipe_arguments
from minionerec.pipeline.cli.plan import Plan, config_values, selected_jobs
from minionerec.pipeline.cli.recipes import find_recipe, read_recipe, shipped_recipes
from minionerec.pipeline.cli.run import parsed_changes, parsed_seeds, run_arguments
from minionerec.pipeline.settings import parse_settings
from minionerec.pipeline.stages import STAGES, stage_spec
from minionerec.serve.command import serve_arguments

GUIDES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "data/README.md", "data/demo/README.md")]
PARTS = sorted([*ROOT.glob("minionerec/contrib/*/README.md"), ROOT / "minionerec" / "serve" / "README.md"])
PAGES = [*GUIDES, *PARTS, *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
BY_SCRIPT = {"calc_level.py": "calc-level", "scripts/eval_beam.py": "eval-beam"}
BY_SCRIPT |= {f"scripts/{name}.py": name for name in ("sft", "grpo")}
FENCE = re.compile(r"(<!-- test: (\w+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HARMLESS = {"cd", "export", "git", "source", ".", "mkdir", "ls", "cat", "cp", "diff", "less", "open", "xdg-open", "pip"}
HARMLESS |= {"curl"}
REWARDS, RANKERS = "docs/how-to/rewards.md", "docs/how-to/extending.md"
BLOCK_SECONDS = 1000  # far more than any block needs on an idle machine


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    way: str
    text: str
    language: str = "bash"


def blocks(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        _, way, language, body = match.groups()
        named = language == "python" and re.match(r"# [\w/]+\.py\n", body)
        if language not in ("bash", "diff") and not named:
            continue
        default = "parse" if page == "README.md" or page.startswith("docs/results/") else "run"
        found.append(Block(page, text[: match.start(4)].count("\n") + 1, way or default, body, language))
    return found


def prose(page):
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def commands(text):
    """The simple commands of a block as lists of words; what stands in here-documents is left out."""
    text = re.sub(r"<<-?\s*'?(\w+)'?(.*?)\n.*?^\1$", r"\2", text, flags=re.MULTILINE | re.DOTALL)
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split, words.commenters = True, ""
        current = []
        # A comment begins with a word: in industrial#sft there is none.
        for word in chain(takewhile(lambda word: not word.startswith("#"), words), ";"):
            if set(word) <= set(";&|"):
                if current:
                    found.append(current)
                current = []
            else:
                current.append(word)
    return found


def check_stage(name, words):
    spec = stage_spec(name)
    if "--help" in words or "-h" in words:
        return
    parse_settings(spec.config_class(), words, fallback=demo_step(spec, words), read=config_values)


def check_python(words):
    if words[:1] == ["-m"]:
        if words[1] == "pytest":
            return check_pytest(words[2:])
        assert importlib.util.find_spec(words[1]) is not None, f"no module {words[1]}"
        if words[1] == "minionerec":
            check_minionerec(words[2:])
    elif words[:1] == ["-c"]:
        ast.parse(words[1])
    elif words[0] != "-":
        assert (ROOT / words[0]).is_file(), f"no script {words[0]}"
        if words[0] in BY_SCRIPT:
            check_stage(BY_SCRIPT[words[0]], words[1:])
        else:
            source = (ROOT / words[0]).read_text(encoding="utf-8")
            for flag in [word.split("=")[0] for word in words[1:] if word.startswith("--")]:
                assert f'"{flag}"' in source, f"{words[0]} has no {flag}"


def check_accelerate(words):
    from accelerate.commands.launch import launch_command_parser

    assert words[0] == "launch", f"accelerate {words[0]} is not known here"
    launch = launch_command_parser().parse_args(words[1:])
    for path in (launch.config_file, launch.deepspeed_config_file):
        assert path is None or (ROOT / path).is_file(), f"no file {path}"
    if launch.config_file:
        content = yaml.safe_load((ROOT / launch.config_file).read_text(encoding="utf-8"))
        inner = content.get("deepspeed_config", {}).get("deepspeed_config_file")
        assert inner is None or (ROOT / inner).is_file(), f"{launch.config_file}: no file {inner}"
    check_python(["-m"] * bool(launch.module) + [launch.training_script, *launch.training_script_args])


def check_make(words):
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def check_pytest(words):
    for word in words:
        path = word.split("::")[0]
        assert word.startswith("-") or "/" not in path or (ROOT / path).exists(), f"no tests at {path}"


def check_minionerec(words, copies=None):
    """The command's own words; `copies` holds the recipes that a page has copied so far, by their folders."""
    copies = {} if copies is None else copies
    if not words or words[0] in ("-h", "--help"):
        return
    if words[0] == "run":
        if not words[1:]:
            return
        given = run_arguments("minionerec run").parse_args(words[1:])
        recipe = copies.get(os.path.normpath(given.recipe), given.recipe)
        if not os.path.normpath(recipe).startswith(("shop", "my_")):  # of the reader, or made by the page itself
            plan = Plan(read_recipe(recipe, parsed_changes(given.changes)), parsed_seeds(given.seeds))
            selected_jobs(plan, given.only, given.first, given.last)
    elif words[0] == "recipes":
        given = recipe_arguments("minionerec recipes").parse_args(words[1:])
        if given.action == "copy":
            find_recipe(given.recipe)
            copies[os.path.normpath(given.file)] = given.recipe
    elif words[0] == "init":
        init_arguments("minionerec init").parse_args(words[1:])
    elif words[0] == "serve":
        serve_arguments(words[1:])
    elif words[0] == "doctor":
        doctor_arguments("minionerec doctor").parse_args(words[1:])
    else:
        check_stage(words[0], words[1:])


def check_command(words, copies=None):
    """Raise where a command names something that does not exist."""
    while words and re.fullmatch(r"\w+=.*", words[0]):
        words = words[1:]
    if not words:
        return
    head, rest = Path(words[0]).name, words[1:]
    known = {"python": check_python, "python3": check_python, "accelerate": check_accelerate, "make": check_make}
    known |= {"pytest": check_pytest, "minionerec": partial(check_minionerec, copies=copies)}
    if head in known:
        known[head](rest)
    else:
        assert head in HARMLESS, f"{words[0]!r} is not known here: correct it, or add it to HARMLESS"


@pytest.fixture
def project(tmp_path):
    """A copy of the project without what runs have made."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("minionerec", "scripts", "configs", "ds_configs", "data", "docs", "benchmarks", "studies"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy / path.name)
    return copy


def environment(project):
    binaries = Path(sys.executable).parent
    (project / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
    (project / ".venv" / "bin" / "activate").write_text("")  # pages begin by sourcing it; the PATH below does its work
    # A console command may have been installed before this version of the package, or not at all.
    command = project / ".venv" / "bin" / "minionerec"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(python())} -m minionerec "$@"\n')
    command.chmod(0o755)
    path = os.pathsep.join([str(command.parent), str(binaries), os.environ["PATH"]])
    return os.environ | {"PATH": path, "PYTHONPATH": str(project)}


@pytest.mark.end_to_end
@pytest.mark.timeout(3 * BLOCK_SECONDS)
@pytest.mark.parametrize("page", [name for name in NAMES if any(block.way == "run" for block in blocks(name))])
def test_commands_run(page, project):
    outputs = []
    for block in blocks(page):
        if block.way != "run":
            continue
        if block.language in ("python", "diff"):
            change(project, block)
            continue
        try:
            words = ["bash", "-euo", "pipefail", "-c", block.text]
            about = {"cwd": project, "env": environment(project), "timeout": BLOCK_SECONDS}
            done = subprocess.run(words, **about, capture_output=True, text=True, check=False)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{page}:{block.line} takes more than {BLOCK_SECONDS} s: put <!-- test: parse --> before it")
        assert done.returncode == 0, f"{page}:{block.line} fails\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        assert "Traceback" not in done.stderr
        outputs.append(done.stdout)
    if page == "docs/tutorial/own-data.md":
        check_walk(project, outputs)
    if page in (check := {"CONTRIBUTING.md": check_examples, REWARDS: check_reward, RANKERS: check_ranker}):
        check[page](project, outputs)
        check_style(project, [block for block in blocks(page) if block.language == "python"])


def change(project, block):
    """Write the file, or apply the change, that a page shows."""
    if block.language == "python":
        path = project / block.text.split("\n", 1)[0].removeprefix("# ")
        assert not path.exists(), f"{block.page}:{block.line}: {path.name} is there already"
        path.write_text(block.text.split("\n", 1)[1])
        return
    for part in re.split(r"^(?=--- a/)", block.text, flags=re.MULTILINE)[1:]:  # a file each, so that lines are counted
        done = subprocess.run(
            ["git", "apply", "--recount", "-"], input=part, cwd=project, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{block.page}:{block.line} does not fit the files: {done.stderr}"


def check_walk(project, outputs):
    assert (project / "runs/shop/report/report.html").is_file()
    assert (project / "runs/shop/eval_catalogue/predictions.parquet").is_file()
    position = next(position for position, text in enumerate(outputs) if "NDCG@10" in text)
    run, recommended = outputs[position], outputs[position + 1].strip().splitlines()
    rows = re.findall(r"^(\S.*?) {2,}\d\.\d{4} \[.*?\] {2,}(\d\.\d{4}) \[", run, re.MULTILINE)
    reached = {name: float(ndcg) for name, ndcg in reversed(rows)}
    assert rows[0][0].startswith("beam search")
    assert reached[rows[0][0]] > reached["popularity"] + 0.2, "beam search does not beat popularity"
    assert "Serve it: minionerec serve --checkpoint runs/shop/catalogue" in run
    assert len(recommended) == 5
    assert all(re.fullmatch(r"0\.\d{3}  (<[a-c]_\d+>){3}  \w+ \w+", line) for line in recommended)
    assert recommended[0].endswith("Tea strainer")
    lists = pd.read_parquet(project / "runs/shop/lists/recommendations.parquet")
    assert lists["user"].tolist() == ["anna", "ben", "new here"] and (lists["items"].str.len() == 5).all()
    assert "Ink4" not in lists["items"][1]


def manifest(project, name):
    return json.loads((project / "runs" / name / "manifest.json").read_text())


def check_examples(project, outputs):
    """Every example has made something, as the project would have it."""
    corpus = pd.read_parquet(project / "runs/visits/corpus/items.parquet")
    assert corpus["title"].tolist() == ["kettle", "cup", "tray", "tea"]
    assert manifest(project, "mine/sids")["config"]["method"] == "first_axis"
    assert len([line for line in outputs[-1].splitlines() if re.match(r" +[\d,]+  \w", line)]) == 5
    assert manifest(project, "demo/popular")["kind"] == "popular"


def check_reward(project, outputs):
    rewards = {"expected_value": 10.0, "diversity": 0.1, "shop_rewards.unseen": 0.1}
    assert manifest(project, "own/grpo")["config"]["rewards"] == rewards
    log = json.loads((project / "runs/own/grpo/training_log.json").read_text())
    assert any("unseen" in key for entry in log for key in entry), "the log does not know the reward"


def check_ranker(project, outputs):
    assert len(pd.read_parquet(project / "runs/mine/newest/predictions.parquet")) > 0


def check_style(project, written):
    files = [project / block.text.split("\n", 1)[0].removeprefix("# ") for block in written]
    changed = [*files, *project.glob("minionerec/*/*.py")]
    for words in (["ruff", "check", *changed], ["ruff", "format", "--check", *changed], ["doctest", *files]):
        done = subprocess.run(
            [sys.executable, "-m", *map(str, words)], cwd=project, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


PARSED = [block for name in NAMES for block in blocks(name) if block.way != "run"]


@pytest.mark.parametrize("block", PARSED, ids=lambda block: f"{block.page}:{block.line}")
def test_commands_that_are_not_run_fit_their_stages(block, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert block.way == "parse", f"unknown mark {block.way!r}"
    found = commands(block.text)
    assert found, "the block holds no command"
    copies = copied(block.page)
    for words in found:
        check_command(words, copies)


def copied(page):
    """The recipes that a page copies, by the folders that it copies them to."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return {os.path.normpath(to): name for name, to in re.findall(r"minionerec recipes copy (\S+) ([\w./-]+)", text)}


@pytest.mark.parametrize(
    "text",
    [
        "python scripts/no_such_script.py",
        "python scripts/sft.py --config demo#sft --no_such_flag 1",
        "python scripts/sft.py --config demo#sft --select_by nothing",
        "python scripts/eval_beam.py --config demo#no_such",
        "accelerate launch --config_file ds_configs/no_such.yaml scripts/sft.py",
        "accelerate launch scripts/grpo.py --config demo#grpo --generations 1",
        "accelerate launch -m minionerec sft --no_such_flag 1",
        "minionerec build-sids --config demo#sids --method nothing",
        "minionerec no_such-stage --config demo#sids",
        "python studies/unchanged.py --no_such_flag 1",
        "minionerec run nowhere",
        "minionerec run demo --from no_such_step",
        "minionerec recipes copy nowhere here",
        "minionerec run demo --only nothing",
        "minionerec run demo --set nothing.epochs=2",
        "python studies/nowhere.py",
        "python -m minionerec sft --no_such_flag 1",
        "ls && no_such_program",
        "pytest tests/no_such_test.py",
        "make no_such_target",
    ],
)
def test_wrong_commands_are_found(text, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(Exception, match=r"no_such|nothing|nowhere|generations is 1"):
        for words in commands(text):
            check_command(words)


def test_blocks_are_taken_apart():
    text = "A=1 x --y 'two words' \\\n  --z  # note\ncat > f <<'EOF'\nnot a command\nEOF\na && b | c\n"
    assert commands(text) == [["A=1", "x", "--y", "two words", "--z"], ["cat", ">", "f"], ["a"], ["b"], ["c"]]


def anchors(path):
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(path.relative_to(ROOT)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", NAMES)
def test_links_lead_somewhere(page):
    here = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        folder = (here / path).resolve() if path else ROOT / page
        assert folder.exists(), f"{page}: link to {target}"
        assert ROOT in folder.parents or folder == ROOT, f"{page}: {target} leaves the project"
        if anchor:
            assert anchor in anchors(folder), f"{page}: no heading for {target}"


FOLDERS = "scripts|configs|ds_configs|docs|data|minionerec|tests|benchmarks|studies"


@pytest.mark.parametrize("page", NAMES)
def test_named_paths_and_modules_exist(page):
    copies = copied(page)
    for span in re.findall(r"`([^`]+)`", prose(page)):
        name = " ".join(span.split())
        if re.fullmatch(rf"(?:{FOLDERS})/[\w./*-]*", name):
            assert name in shipped_recipes() or list(ROOT.glob(name.rstrip("/"))), f"{page}: no {name}"
        elif re.fullmatch(r"minionerec(\.\w+)+", name):
            check_module(page, name)
        elif re.match(r"(python|accelerate|minionerec|make|pytest) ", name):
            for words in commands(name):
                if words[0] == "minionerec" and len(words) == 2 and words[1] in (*STAGES, "init"):
                    continue  # it is named, not given as a command
                if not re.search("…|STAGE|NAME|FILE", name) and not any("shop/" in word for word in words):
                    check_command(words, copies)


def check_module(page, name):
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        folder = ROOT.joinpath(*parts[:length])
        file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        if file.is_file():
            defined = {getattr(node, "name", None) for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))}
            rest = parts[length:]
            assert all(part in defined for part in rest) and len(rest) <= 2, f"{page}: {name} is not in {file}"
            return
    pytest.fail(f"{page}: no {name}")


def words_of(*paths):
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def test_the_readme_is_short():
    text = re.sub(r"\]\([^)]*\)", "]", README)  # addresses of links are no decimals
    assert len(README.splitlines()) <= 90
    assert words_of(ROOT / "README.md") <= 800
    assert len(re.findall(r"\d*\.\d+", text)) <= 20


def test_pages_are_short():
    docs = ROOT / "docs"
    results, decisions = list(docs.glob("results/*.md")), list(docs.glob("decisions/*.md"))
    guides = [path for path in docs.rglob("*.md") if path not in (*results, *decisions)]
    assert words_of(*guides) <= 24_000
    assert words_of(*guides, *results, *decisions) <= 45_000
    limits = dict.fromkeys(results, 800) | dict.fromkeys(decisions, 300)
    too_long = {path.name: words_of(path) for path, limit in limits.items() if words_of(path) > limit}
    assert not too_long


@pytest.mark.end_to_end
def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    """On a part of the demo shop, with a smaller model than that of the defaults."""
    interactions = pd.read_csv(ROOT / "data/demo/interactions.csv")
    users = interactions["user_id"].unique()[:60]
    interactions[interactions["user_id"].isin(users)].to_csv(tmp_path / "interactions.csv", index=False)
    shutil.copy(ROOT / "data/demo/items.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    run, small = api._run, {"sft": {"hidden_size": 32, "layers": 1}, "grpo": {"max_steps": 2}}
    monkeypatch.setattr(api, "_run", lambda stage, settings: run(stage, {**small.get(stage, {}), **settings}))
    (block,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "NDCG@10" in printed and printed.count("item_id=") == 5


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        listed = name == "README.md" or name.startswith("results/") or f"({name})" in index
        assert listed, f"docs/README.md lacks {name}"


def test_the_table_of_stages_is_the_registry():
    page = (ROOT / "docs" / "reference" / "stages.md").read_text(encoding="utf-8")
    table = page[page.index("| `prepare-data`") :].partition("\n\n")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) == list(STAGES)


def test_the_drawing_names_stages():
    text = (ROOT / "docs" / "images" / "data-flow.svg").read_text(encoding="utf-8")
    named = [name for name in re.findall(r'<text class="code"[^>]*>([^<]+)<', text) if "&lt;" not in name]
    assert len(named) == 7
    assert set(named) <= set(STAGES)


@pytest.mark.parametrize("page", ["tutorial/own-data.md", "how-to/columns.md"])
def test_every_setting_that_the_pages_of_own_data_name_exists(page):
    fields = {name for spec in STAGES.values() for name in spec.config_class().__dataclass_fields__}
    named = re.findall(r"`(\w+):[ `]", (ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert len(named) > 8
    assert set(named) <= fields


def test_the_headline_picture_is_drawn_by_the_command_of_its_page(tmp_path, monkeypatch):
    page = "docs/results/cost.md"
    (words,) = (words for block in blocks(page) for words in commands(block.text) if "quality_plot.py" in str(words))
    assert words[:3] == ["python", "studies/quality_plot.py", "docs/images/quality.svg"]
    monkeypatch.setattr(sys, "argv", [*words[1:2], str(tmp_path / "drawn.svg"), *words[3:]])
    plot = study("quality_plot")
    plot.main()
    text, figures = drawing(tmp_path / "drawn.svg")
    shipped_text, shipped_figures = drawing(ROOT / words[2])
    assert text == shipped_text and figures == pytest.approx(shipped_figures, rel=1e-4, abs=0.01)  # points of 1/72 inch
    results = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "results").glob("*.md"))
    for word in words[4:]:
        _, (_, value, low, high) = plot.point(word)
        figure, ends = f"{value:.4f}", f"[{low:.4f}, {high:.4f}]"
        assert re.search(rf"{figure[1:]}[^|]*{re.escape(ends.replace('0.', '.'))}", results.replace("0.", ".")), word


def drawing(path):
    """The text of a picture without identifiers, which are hashes of unrounded coordinates, and the numbers in it."""
    text = re.sub(r'(\bid="|href="#|url\(#)[^")]*', r"\1", path.read_text(encoding="utf-8"))
    number = r"(?<![\w#])-?\d+(?:\.\d+)?"
    return re.sub(number, "0", text), [float(found) for found in re.findall(number, text)]


RECORDS = ROOT / "docs" / "results" / "records"
DATA_SETS = {"Industrial": "industrial", "Steam": "steam", "Games": "games", "Beauty": "beauty", "demo shop": "demo"}
PARTS = {0: "all", 2: "target: cold", 3: "session: at most half an hour", 4: "session: later"}  # of the demo's table


def record(name):
    """A record, its figures with four digits."""
    known = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    for parts in known["NDCG@10"].values():
        for part, figures in parts.items():
            if part != "seeds":
                parts[part] = [None if figure is None else round(figure, 4) for figure in figures]
    return known


def figures_in(cell):
    """A mean, and the ends of its interval or None, as a cell of a table has them."""
    mean, interval = re.search(r"\.\d{4}", cell), re.search(r"\[(\.\d{4}), (\.\d{4})\]", cell)
    return [float(mean[0]), *((None, None) if interval is None else map(float, interval.groups()))]


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_of_the_readme_has_the_figures_of_records():
    table = README[README.index("| data | seeds |") :].partition("\n\n")[0].splitlines()[2:]
    compared = []
    for row in table:
        head, seeds, *cells, _ = row.strip("| ").split(" | ")
        name = DATA_SETS[re.match(r"\[([\w ]+)\]", head)[1]]
        known = record(name)["NDCG@10"]
        baseline = re.search(r"\] ([\w ]+)$", cells[0])[1]
        systems = (baseline, "mixture of baselines", "language model", "catalogue model")
        for system, cell in zip(systems, cells, strict=True):
            if re.search(r"\d", cell):
                figures = [int(figure) / 10_000 for figure in re.findall(r"\d+", cell)]
                assert figures == known[system]["all"], (name, system)
                compared.append((name, system))
        for system, count in zip(systems[2:], seeds.split("; "), strict=True):
            assert not re.search(r"\d", count) or known[system]["seeds"] == int(count), (name, system)
    assert len(compared) == 14 and set(DATA_SETS.values()) == {path.stem for path in RECORDS.glob("*.json")}
    assert set(DATA_SETS.values()) == {name for name, _ in compared}


@pytest.mark.parametrize(
    ("in_readme", "figure"),
    [
        ("1217 V-STAR", r"\.1217"),
        ("1167 MiniOneRec", r"\.1167"),
        ("39 % of the targets", "39 % of the test examples"),
        ("| 4; 25 |", "25 min 14 s"),
        ("| 39 GiB |", r"39\.3 GiB"),
    ],
)
def test_other_figures_of_the_readme_stand_on_a_page_of_results(in_readme, figure):
    assert in_readme in README
    results = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "results").glob("*.md"))
    assert re.search(figure, results)


def test_the_demos_page_has_the_figures_of_its_record():
    text = (ROOT / "data" / "demo" / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| | all | HR@10") :].partition("\n\n")[0].splitlines()[2:]
    *rows, ceiling = [row.strip("| ").split(" | ") for row in table]
    known, compared = record("demo")["NDCG@10"], []
    for head, *cells in rows:
        system = next(name for name in sorted(known, key=len) if head.strip("* ").startswith(name))
        assert [figures_in(cells[column]) for column in PARTS] == [known[system][part] for part in PARTS.values()]
        compared.append(system)
    assert set(compared) == set(known) - {"most recent items"}
    expected = json.loads((ROOT / "data" / "demo" / "ceiling.json").read_text())["ceiling"]["ndcg@10"]
    assert figures_in(ceiling[1])[0] == round(expected, 4)
    assert f"| {round(10_000 * expected)} ceiling |" in README


@pytest.mark.parametrize("name", DATA_SETS.values())
def test_a_record_says_where_its_figures_are_from(name):
    """A transcribed one has what stands on the pages that it names."""
    known = record(name)
    assert {"commit", "machine"} <= known["origin"].keys() and known["split"] == "test"
    if "transcribed" not in known["origin"]:
        assert known["origin"]["command"]
        return
    named = [source.partition(" at commit ")[0] for source in known["origin"]["transcribed"]]
    pages = "".join((ROOT / page).read_text(encoding="utf-8") for page in named)
    for system, parts in known["NDCG@10"].items():
        for part, (mean, *interval) in ((part, value) for part, value in parts.items() if part != "seeds"):
            words = f"{mean:.4f}"[1:]
            ends = "[" + ", ".join(f"{end:.4f}"[1:] for end in interval) + "]" if interval[0] is not None else ""
            assert words in pages and ends in pages, (system, part)


def test_the_drawing_is_whole_and_reads_in_dark_mode():
    import xml.etree.ElementTree as ElementTree

    path = ROOT / "docs" / "images" / "data-flow.svg"
    tree = ElementTree.parse(path)
    _, _, width, height = map(float, tree.getroot().attrib["viewBox"].split())
    space = "{http://www.w3.org/2000/svg}"
    for box in tree.iter(f"{space}rect"):
        x, y, w, h = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
    text = path.read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in text
    used = set(re.findall(r'class="([\w-]+)"', text))
    light, dark = text.split("@media")[0], text.split("@media")[1]
    for name in used:
        assert f".{name} " in light or f".{name}," in light, f"{name} has no colour"
        assert f".{name} " in dark or f".{name}," in dark, f"{name} has no colour in dark mode"
