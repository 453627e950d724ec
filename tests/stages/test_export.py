"""Export: the files alone, read without the project, give the project's lists."""

import json
import os
import re
import subprocess
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.architectures import small_config, small_model
from support.checkpoints import save_checkpoint
from support.commands import command
from support.evaluation import copy_artefact
from support.gaps import GAP
from support.preloaded import python
from support.training import catalogue_config, make_inputs
from transformers import AutoModelForCausalLM

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.build import scratch_model, train_tokenizer
from minionerec.models.backbone.bundle import Bundle, load_bundle
from minionerec.models.backbone.vocabulary import add_code_tokens, add_wording_tokens
from minionerec.models.decoding.architectures import ARCHITECTURES
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.wording import load_wording
from minionerec.pipeline.config.recommend import ExportConfig
from minionerec.pipeline.export import run_export, write_for_transformers_4, write_trie
from minionerec.pipeline.train_catalogue import run_catalogue
from minionerec.recommend.rankers.language import LanguageRanker, Search
from minionerec.recommend.rankers.protocol import Queries
from minionerec.recommend.sid_trie import SidTrie, check
from minionerec.sid.table import SidTable

# Runs in a process of its own: nothing of the project can be imported, and the export's folder is the working one.
ALONE = """
import json, os, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "minionerec":
            raise ImportError("the project is not there")

sys.meta_path.insert(0, Blocked())
asked = json.load(open(sys.argv[1]))
answers = {}
for folder, questions in asked.items():
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.modules.pop("sid_trie", None)
    import sid_trie
    assert sid_trie.__file__.startswith(folder)
    page = {}
    for code in json.load(open(sys.argv[2]))[folder]:
        exec(code, page)
    searched = []
    for example in page["about"]["examples"]:
        prompt = page["tokenizer"](example["text"])["input_ids"][-page["about"]["max_prompt_length"]:]
        assert prompt == example["input_ids"]
        log_probs = sid_trie.model_log_probs(page["model"])
        searched.append(page["trie"].search(log_probs, prompt, page["about"]["beams"]))
    stock = type(page["model"]).__module__.startswith("transformers.")
    answers[folder] = {
        "items": [page["recommend"](*question) for question in questions],
        "checked": sid_trie.check(folder),
        "searched": searched,
        "stock": stock and all(type(part).__module__.startswith(("torch.", "transformers."))
                               for part in page["model"].modules()),
    }
assert not [name for name in sys.modules if name.split(".")[0] == "minionerec"]
json.dump(answers, open(sys.argv[3], "w"))
"""


def export_config(folder, **changes):
    settings = {"corpus": str(folder / "corpus"), "checkpoint": str(folder / "checkpoint")}
    return ExportConfig(**{**settings, "output": str(folder / "export"), **changes})


def ask_alone(tmp_path, asked):
    """What exports recommend, asked by what their examples take, in a process that cannot import the project."""
    pages = {folder: (Path(folder) / "README.md").read_text() for folder in asked}
    blocks = {folder: re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) for folder, page in pages.items()}
    files = [tmp_path / name for name in ("asked.json", "pages.json", "answers.json")]
    files[0].write_text(json.dumps(asked))
    files[1].write_text(json.dumps(blocks))
    script = tmp_path / "alone.py"
    script.write_text(ALONE)
    subprocess.run([python(), str(script), *map(str, files)], check=True, cwd=tmp_path)
    return json.loads(files[2].read_text())


def lists_of(checkpoint, corpus, k, context=None):
    """What an export's example is asked for the test rows, and the lists of our ranker, given that gap."""
    bundle, corpus = load_bundle(checkpoint), Corpus.load(corpus)
    histories = corpus.test.histories.tolist()
    conditioned = {} if context is None else {"gap": np.full(len(histories), GAP.names.index(context))}
    ranking = LanguageRanker(bundle, corpus, Search()).rank(Queries(histories, conditioned), k)
    ids = bundle.table.item_ids
    more = [] if context is None else [{} if context == "unknown" else {"gap": context}]
    questions = [[[ids[item] for item in row], k, *more] for row in histories]
    return questions, [[ids[item] for item in row] for row in ranking.items]


def save_scratch(made, folder, seed, wording="compact", table=None, context=()):
    """A checkpoint that was never trained, of the shop's SIDs unless others are given."""
    wording, table = replace(load_wording(wording), context=context), table or SidTable.load_index(made / "sids")
    tokenizer = train_tokenizer(["thing 0 1 2 3 4 5"], 300)
    add_code_tokens(tokenizer, table)
    if wording.context:
        add_wording_tokens(tokenizer, wording.tokens)
    model = scratch_model(tokenizer, seed, hidden_size=32, layers=2, heads=2, kv_heads=1, inner_size=48)
    for parameter in model.parameters():
        parameter.data *= 4
    save_checkpoint(Bundle(model, tokenizer, table, wording, 64), folder)


class Alone(NamedTuple):
    """An export, our lists, and what a process without the project made of it."""

    output: Path
    wanted: list
    answer: dict


@pytest.fixture(scope="module")
def alone(made, tmp_path_factory):
    """Name to an export that was read without the project: of two wordings, and conditioned on the gap."""
    folder = tmp_path_factory.mktemp("alone")
    prose = {"wording.yaml": load_wording("prose").to_yaml()}
    checkpoints = {"compact": made / "checkpoint", "prose": copy_artefact(made / "checkpoint", folder / "p", **prose)}
    save_scratch(made, folder / "c", 1, context=(GAP,))
    checkpoints["features"] = folder / "c"
    outputs, asked, wanted = {}, {}, {}
    for name, checkpoint in checkpoints.items():
        path = str(folder / name)
        outputs[name] = run_export(export_config(made, checkpoint=str(checkpoint), output=path)).output
        contexts = GAP.names if name == "features" else [None]
        found = [lists_of(checkpoint, made / "corpus", 5, context) for context in contexts]
        asked[str(outputs[name])] = [question for questions, _ in found for question in questions]
        wanted[name] = [lists for _, lists in found]
    answers = ask_alone(folder, asked)
    return {name: Alone(output, wanted[name], answers[str(output)]) for name, output in outputs.items()}


@pytest.mark.parametrize("name", ["compact", "prose", "features"])
def test_the_files_alone_give_our_lists(alone, name):
    output, wanted, answer = alone[name]
    assert answer["items"] == [row for lists in wanted for row in lists]
    assert answer["stock"]
    examples = json.loads((output / "prompts.json").read_text())["examples"]
    assert len(examples) == 5
    assert answer["checked"].startswith("5 of 5 lists are equal")
    items = json.loads((output / "sid_to_item.json").read_text())
    for found, example in zip(answer["searched"], examples, strict=True):
        assert [tokens for tokens, _ in found] == example["sid_tokens"]
        assert [score for _, score in found] == pytest.approx(example["scores"], rel=1e-4, abs=1e-4)
        assert example["items"][:1] == items[example["sids"][0]][:1]


def test_a_model_that_is_given_request_features_is_exported_with_them(alone):
    output, wanted, _ = alone["features"]
    assert len({json.dumps(lists) for lists in wanted}) == 3
    about = json.loads((output / "prompts.json").read_text())
    tokens = about["context"]["gap"]
    assert tokens == {"same": "<gap_1>", "later": "<gap_2>"} and about["context_features"] == [GAP.stored()]
    given = [example["context"].get("gap") for example in about["examples"]]
    assert given == [None, "same", "later", None, "same"]
    tokenizer = load_bundle(output.parent / "c").tokenizer
    for value, example in zip(given, about["examples"], strict=True):
        assert example["text"].endswith(">" + tokens.get(value, ""))
        assert value is None or example["input_ids"][-1:] == tokenizer.convert_tokens_to_ids([tokens[value]])
    page = " ".join((output / "README.md").read_text().split())
    assert "features of the request in training (gap), and a prompt may give them" in page


def test_a_model_without_request_features_does_not_mention_them(alone):
    output = alone["compact"].output
    assert "context" not in (output / "prompts.json").read_text()
    assert "features of the request" not in (output / "README.md").read_text()


def test_items_of_an_sid_stand_by_popularity_in_the_order_of_sid_numbers(made, alone):
    output, table = alone["compact"].output, SidTable.load_index(made / "sids")
    found = json.loads((output / "sid_to_item.json").read_text())
    assert found["<a_0><b_1>"] == ["y", "v"]  # y is the more popular
    assert list(found) == sorted(found, key=lambda sid: table.sid_numbers[table.items_of(sid)[0]])
    trie, tokenizer = SidTrie(output), load_bundle(made / "checkpoint").tokenizer
    for number, sid in enumerate(found):
        node = 0
        for token in tokenizer(sid, add_special_tokens=False)["input_ids"]:
            node = trie.child(node, token)
        assert trie.sid[node] == number
    counts = read_manifest(output)["counts"]
    assert counts["sids"] == len(found) == 5
    assert (counts["items"], counts["splits"], counts["dtype"]) == (6, ["train"], "float32")


@pytest.mark.parametrize("seed", range(3))
def test_what_may_follow_is_what_a_dictionary_says(tmp_path, seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 6, (60, 4))
    for row in codes[: 30 * (seed > 0)]:
        row[rng.integers(1, 4) :] = -1
    ids = rng.permutation(100)[:24].reshape(4, 6)
    trie = Trie.build(codes, ids)
    write_trie(trie, tmp_path / "trie.safetensors")
    read = SidTrie(tmp_path)
    paths = {tuple(int(ids[level, code]) for level, code in enumerate(row) if code >= 0) for row in codes.tolist()}
    may = {}
    for path in paths:
        for depth in range(len(path)):
            may.setdefault(path[:depth], set()).add(path[depth])
    for prefix in {path[:depth] for path in paths for depth in range(5)}:
        below = may.get(prefix, set())
        assert set(read.allowed(prefix)) == below
        assert set(read.allowed(prefix, end=(200, 201))) == below | ({200} if prefix in paths else set())
        if prefix in paths:
            assert read.allowed([*prefix, 200], end=(200, 201)) == [201]
            assert read.allowed([*prefix, 200, 201], end=(200, 201)) == []
    assert read.allowed([300]) == read.allowed([300, 301]) == []
    assert read.prefix_allowed_tokens_fn(2)(0, torch.tensor([1, 2, 300])) == [0]


def test_sids_of_several_lengths_are_searched_as_ours(made, tmp_path):
    codes = np.array([[0, -1, -1], [1, 0, -1], [1, 1, 2], [2, 1, 0], [2, 1, 1], [0, -1, -1]])
    table = SidTable(codes, list("uvwxyz"))
    save_scratch(made, tmp_path / "checkpoint", 1, table=table)
    changes = {"checkpoint": str(tmp_path / "checkpoint"), "output": str(tmp_path / "export")}
    output = run_export(export_config(made, **changes)).output
    assert "differ in length (1 to 3 codes)" in (output / "README.md").read_text()
    assert check(output).startswith("5 of 5 lists are equal")


def test_other_weights_are_noticed(made, tmp_path):
    output = run_export(export_config(made, output=str(tmp_path / "export"))).output
    weights = load_file(output / "model.safetensors")
    save_file({name: 1.5 * each for name, each in weights.items()}, output / "model.safetensors", {"format": "pt"})
    with pytest.raises(SystemExit, match="The model or the trie is not the exported one"):
        check(output)


def test_weights_of_another_dtype(made, tmp_path):
    half = run_export(export_config(made, output=str(tmp_path / "export"), dtype="bfloat16"))
    assert load_file(half.output / "model.safetensors")["model.norm.weight"].dtype == torch.bfloat16
    assert json.loads((half.output / "config.json").read_text())["dtype"] == "bfloat16"
    assert json.loads((half.output / "generation_config.json").read_text())["do_sample"] is False
    assert check(half.output)
    assert read_manifest(half.output, "export")["inputs"].keys() == {"checkpoint", "corpus"}


# In JSON of version 5: a kind of model, its rotary settings, and what version 4 reads of them.
VERSION_4 = [
    ("qwen2", {"rope_theta": 5e5}, {"rope_theta": 5e5}),
    (
        "llama",
        {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ),
    (
        "olmo",
        {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
    ),
    ("phi", {"rope_theta": 5e5, "partial_rotary_factor": 0.5}, {"rope_theta": 5e5, "partial_rotary_factor": 0.5}),
    ("gpt_neox", {"rope_theta": 5e5, "partial_rotary_factor": 0.5}, {"rotary_emb_base": 5e5, "rotary_pct": 0.5}),
    (
        "gemma3_text",
        {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 1e3}},
        {"rope_theta": 5e5, "rope_local_base_freq": 1e3},
    ),
    (
        "phi3",
        {
            **{"rope_theta": 5e5, "rope_type": "longrope", "original_max_position_embeddings": 64},
            **{"short_factor": [1.5] * 4, "long_factor": [3.0] * 4},
        },
        {
            "original_max_position_embeddings": 64,
            "rope_scaling": {"type": "longrope", "short_factor": [1.5] * 4, "long_factor": [3.0] * 4},
        },
    ),
]


def export_of_a_kind(folder, kind, rope):
    """The files of a small model and a tokenizer as an export has them, with the logits of a prompt."""
    settings = {"original_max_position_embeddings": 64} if kind == "phi3" else {}
    model = small_model(small_config(kind, **settings, **({"rope_parameters": deepcopy(rope)} if rope else {})))
    model.save_pretrained(folder)
    train_tokenizer(["thing 0 1 2 3 4 5"], 300).save_pretrained(folder)
    write_for_transformers_4(folder)
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT])).logits
    np.save(folder / "logits.npy", logits.numpy())
    return logits


PROMPT = [5, 6, 7, 50, 8, 9]


@pytest.mark.parametrize(("kind", "rope", "written"), VERSION_4)
def test_rotary_settings_are_where_version_4_of_transformers_reads_them(tmp_path, kind, rope, written):
    logits = export_of_a_kind(tmp_path, kind, rope)
    config = json.loads((tmp_path / "config.json").read_text())
    assert {name: config.get(name) for name in written} == written
    assert ("rope_scaling" in config) == ("rope_scaling" in written)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"
    with torch.no_grad():
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path).eval()(torch.tensor([PROMPT])).logits, logits)


READ_BY_VERSION_4 = """
import sys, numpy, torch, transformers
assert transformers.__version__.startswith("4."), transformers.__version__
for folder in sys.argv[1:]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    assert len(transformers.AutoTokenizer.from_pretrained(folder))
    logits, wanted = model(torch.tensor([%s])).logits.detach().numpy(), numpy.load(folder + "/logits.npy")
    assert abs(logits - wanted).max() <= 1e-5 * abs(wanted).max(), folder
"""


@pytest.mark.slow
def test_version_4_of_transformers_computes_the_same_logits(made, tmp_path):
    other = os.environ.get("MINIONEREC_TRANSFORMERS_4")
    if not other:
        pytest.skip("MINIONEREC_TRANSFORMERS_4 names no Python whose transformers is 4.56 or later of version 4")
    kinds = [(kind, None) for kind in ARCHITECTURES] + [(kind, rope) for kind, rope, _ in VERSION_4]
    folders = [tmp_path / f"{number}-{kind}" for number, (kind, _) in enumerate(kinds)]
    for folder, (kind, rope) in zip(folders, kinds, strict=True):
        export_of_a_kind(folder, kind, rope)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [other, "-c", READ_BY_VERSION_4 % PROMPT, *map(str, folders)], check=True, cwd=tmp_path, env=environment
    )
    export = run_export(export_config(made, output=str(tmp_path / "export"))).output
    subprocess.run([other, "sid_trie.py"], check=True, cwd=export, env=environment)


def test_a_self_check_with_another_version_names_both(made, tmp_path):
    output = run_export(export_config(made, output=str(tmp_path / "export"))).output
    about = json.loads((output / "prompts.json").read_text())
    (output / "prompts.json").write_text(json.dumps(about | {"transformers": "4.0"}))
    weights = load_file(output / "model.safetensors")
    save_file({name: 1.5 * value for name, value in weights.items()}, output / "model.safetensors", {"format": "pt"})
    with pytest.raises(SystemExit, match=r"Or it is read otherwise: this is transformers 5.*was written with 4\.0\."):
        check(output)
    (output / "config.json").write_text(json.dumps({"model_type": "none"}))
    with pytest.raises(
        SystemExit, match=r"The model cannot be loaded with transformers 5.*written with 4\.0: ValueError"
    ):
        check(output)


def test_what_is_refused(made, tmp_path):
    make_inputs(tmp_path)
    run_catalogue(catalogue_config(tmp_path, epochs=0.2))
    catalogue = {"checkpoint": str(tmp_path / "catalogue"), "output": str(tmp_path / "export")}
    with pytest.raises(ConfigError, match=r"catalogue: is a catalogue model, .* minionerec serve, or distil it"):
        run_export(export_config(tmp_path, **catalogue))
    with pytest.raises(DataError, match="24 items, but the SID table has 6"):
        run_export(export_config(made, corpus=str(tmp_path / "corpus"), output=str(tmp_path / "export")))
    with pytest.raises(ArtefactError, match="holds a 'corpus', expected a 'checkpoint'"):
        run_export(replace(export_config(made, output=str(tmp_path / "export")), checkpoint=str(made / "corpus")))
    assert not (tmp_path / "export").exists()


class Hub:
    """In place of `HfApi`: what is created and uploaded, and a refusal where it is told to refuse."""

    made: dict
    files: dict
    refuses = False

    def create_repo(self, repository, **settings):
        if Hub.refuses:
            raise OSError("403 forbidden")
        Hub.made = {"repository": repository, **settings}
        return f"https://hub.example/{repository}"

    def upload_folder(self, repo_id, folder_path, ignore_patterns, commit_message):
        assert repo_id == Hub.made["repository"] and "minionerec" in commit_message
        Hub.files = {path.name: path.read_bytes() for path in folder_path.iterdir() if path.name not in ignore_patterns}


def test_an_export_is_uploaded_to_a_hub(made, tmp_path, monkeypatch):
    words = ["--corpus", str(made / "corpus"), "--checkpoint", str(made / "checkpoint")]
    words += ["--output", str(tmp_path / "export"), "--push", "me/shop"]
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert "could not be uploaded" in command(tmp_path, "export", *words).reported  # HF_HUB_OFFLINE is set
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    done = command(tmp_path, "export", *words)
    assert done.status == 0, done.err
    assert done.out.splitlines()[-1] == "uploaded: https://hub.example/me/shop"
    assert Hub.made == {"repository": "me/shop", "exist_ok": True, "private": True}
    here = {path.name: path.read_bytes() for path in (tmp_path / "export").iterdir() if path.name != "manifest.json"}
    assert Hub.files == here
    monkeypatch.setattr(Hub, "refuses", True)
    refused = command(tmp_path, "export", *words)
    assert "hf_secret" not in refused.err
    assert "me/shop: the export in" in refused.reported and "run the same command again" in refused.reported
