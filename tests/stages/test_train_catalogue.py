"""The stage that trains a catalogue model: its data, its rewards by hand, end to end, killed, and what is refused."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support.checkpoints import save_checkpoint
from support.examples import keep_in_blocks, several_files, sid_windows
from support.kill import Point, stage_in_child
from support.processes import keeping_weights, stage_in_processes
from support.small_shop import sign
from support.training import (
    N_ITEMS,
    Killed,
    catalogue_config,
    grpo_config,
    in_parts,
    kill_after,
    log_of,
    logged,
    make_inputs,
    mixed_sids,
    nearly_same_weights,
    same_weights,
    sft_config,
    short_of_memory,
)
from transformers import AutoModelForCausalLM

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.core.records import read_run_record
from minionerec.data.corpus import Corpus
from minionerec.data.roles import encode_columns, fit_columns
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.backbone.catalogue import CatalogueModel, blocks, tower
from minionerec.models.nn.layers import Dropout
from minionerec.pipeline import train_catalogue as stage
from minionerec.pipeline.config.encoder import EmbedConfig
from minionerec.pipeline.config.evaluation import EvalConfig
from minionerec.pipeline.embed_items import run_embed
from minionerec.pipeline.evaluate import run_eval
from minionerec.pipeline.grpo import run_grpo
from minionerec.pipeline.sft import run_sft
from minionerec.pipeline.train_catalogue import run_catalogue
from minionerec.sid.table import SidTable
from minionerec.training.catalogue.gains import input_gains, target_ndcg
from minionerec.training.catalogue.objectives import CatalogueTrainer, expected_loss, grpo_loss
from minionerec.training.catalogue.windows import collate, held_out_windows, older_sids
from minionerec.training.neighbours import sid_text

SAMPLED = {"loss": "sampled", "negatives": 6, "max_grad_norm": 0.0}


def sampling(folder, **changes):
    return catalogue_config(folder, **{**SAMPLED, **changes})


def sharpening(folder, **changes):
    return catalogue_config(folder, **{"checkpoint": str(folder / "catalogue"), "objective": "expected", **changes})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("catalogue")
    with several_files():
        make_inputs(folder)
    return folder, run_catalogue(catalogue_config(folder))


def last_checkpoint(output):
    """The weights that a run ended with, whether they were its best or not."""
    return max(Path(f"{output}.finished").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))


def test_windows_are_the_training_rows(trained):
    """Each row once: its history behind the position, its target as label."""
    folder, _ = trained
    corpus = Corpus.load(folder / "corpus")
    table = SidTable.load_index(folder / "sids")
    windows, valid = sid_windows(corpus, table, recency=0.0)
    number = table.sid_numbers + 1
    for part, split in ((windows, "train"), (valid, "valid")):
        found = []
        for items, labels in zip(part["histories"], part["labels"], strict=True):
            for position in np.flatnonzero(labels > 0):
                found.append((items[: position + 1].tolist(), int(labels[position])))
        rows = corpus.rows(split)
        wanted = [
            (number[history].tolist(), int(number[target]))
            for history, target in zip(rows.histories, rows.targets, strict=True)
        ]
        assert sorted(found) == sorted(wanted)
        assert (part["weights"] == 1).all()
        assert set(np.unique(part["labels"])) <= {-100, *range(1, N_ITEMS + 1)}
    batch = collate([{name: values[position] for name, values in windows.items()} for position in (0, 3)])
    assert batch["histories"].shape == batch["labels"].shape == batch["weights"].shape == (2, 3)


def test_newer_targets_weigh_more_where_rows_are_in_order_of_time(trained, caplog):
    folder, _ = trained
    corpus = Corpus.load(folder / "corpus")
    table = SidTable.load_index(folder / "sids")
    with caplog.at_level("INFO", "minionerec"):
        assert (sid_windows(corpus, table, recency=2.0)[0]["weights"] == 1).all()
    assert "The split is leave-last-out" in caplog.text
    windows, valid = sid_windows(replace(corpus, split="global time"), table, recency=2.0)
    labelled = windows["labels"] > 0
    assert windows["weights"][labelled].mean() == pytest.approx(1.0)
    assert (valid["weights"] == 1).all()
    rows = corpus.rows("train")
    weight = {}
    for items, labels, weights in zip(*(windows[name] for name in ("histories", "labels", "weights")), strict=True):
        for position in np.flatnonzero(labels > 0):
            weight.setdefault((tuple(items[: position + 1]), labels[position]), set()).add(float(weights[position]))
    number = table.sid_numbers + 1
    logs = []
    for row, (history, target) in enumerate(zip(rows.histories, rows.targets, strict=True)):
        options = weight[tuple(number[history]), number[target]]
        if len(options) == 1:
            logs.append((row, np.log(options.pop())))
    positions, logs = np.array(logs).T
    assert len(logs) > 5
    assert np.allclose(np.diff(logs) / np.diff(positions), 2.0 / len(rows), rtol=1e-3)


def test_text_of_an_sid_is_the_mean_of_its_items(trained, tmp_path):
    folder, _ = trained
    corpus = Corpus.load(folder / "corpus")
    codes = SidTable.load_index(folder / "sids").codes.copy()
    codes[1] = codes[0]
    table = SidTable(codes, corpus.items["item_id"].tolist())
    run_embed(EmbedConfig(corpus=str(folder / "corpus"), output=str(tmp_path / "vectors"), dimensions=8))
    text = sid_text(corpus, table.sid_numbers, str(tmp_path / "vectors"), 8)
    plain = sid_text(corpus, SidTable.load_index(folder / "sids").sid_numbers, str(tmp_path / "vectors"), 8)
    assert text.dtype == np.float32 and text.shape == (N_ITEMS - 1, plain.shape[1])
    assert np.allclose(text[0], plain[:2].mean(0), atol=1e-6)
    assert np.allclose(text[1:], plain[2:])
    assert np.allclose((plain**2).sum(1), plain.shape[1], rtol=1e-3)


SEVEN = SidTable(np.arange(7)[:, None], [f"i{index}" for index in range(7)])


def with_columns(corpus):
    """A corpus whose items have a brand, a price and a note."""
    count = corpus.n_items
    brands = [f"brand {number % 3}" for number in range(count)]
    prices = ["" if number == 5 else str(10 * number) for number in range(count)]
    items = corpus.items.assign(brand=brands, price=prices, note=[f"note {number}" for number in range(count)])
    roles = {"brand": "category", "price": "number", "note": "text"}
    return replace(corpus, items=items, counts={**corpus.counts, "roles": roles})


@pytest.mark.parametrize("vectors", ["tfidf", ""])
def test_columns_of_items_are_added_to_their_vectors(trained, tmp_path, vectors):
    folder, _ = trained
    corpus = with_columns(Corpus.load(folder / "corpus"))
    corpus.save(tmp_path / "corpus", config={}, inputs={})
    changes = {"corpus": str(tmp_path / "corpus"), "vectors": vectors, "item_columns": ["price", "brand"]}
    result = run_catalogue(catalogue_config(folder, **changes, experts=True, output=str(tmp_path / "out")))
    bundle = load_bundle(tmp_path / "out")
    model, table = bundle.model, bundle.table
    price, brand = model.item_columns()
    sold = corpus.popularity() > 0
    assert [price, brand] == fit_columns(corpus.items, corpus.roles, ["price", "brand"], sold)
    assert model.texts_width == (8 if vectors else 0)
    codes = encode_columns(corpus.items, [price, brand])
    assert torch.equal(model.text[table.sid_numbers][:, model.texts_width :], torch.from_numpy(codes))
    if vectors:
        text = sid_text(corpus, table.sid_numbers, "tfidf", 8)
        assert torch.equal(model.text[:, :8], torch.from_numpy(text))
    # By hand: the metric with each column at its mean.
    heldout = held_out_windows(corpus.valid, table.sid_numbers, corpus.max_history)
    heldout["older"] = older_sids(corpus.valid, table.sid_numbers, corpus.max_history)
    gains, whole = result.counts["inputs"], model.text.clone()
    assert gains["examples"] == len(corpus.valid) and set(gains["without"]) == {"price", "brand"}
    with torch.inference_mode():
        assert gains["NDCG@10"] == pytest.approx(target_ndcg(model, heldout).mean(), abs=1e-3)
        begin = model.texts_width + price.width
        model.text[:, begin:] = whole[:, begin:].mean(0)
        assert gains["without"]["brand"] == pytest.approx(target_ndcg(model, heldout).mean(), abs=1e-3)
        model.text.copy_(whole)
        again = input_gains(model, heldout)
    assert torch.equal(model.text, whole)
    assert again["without"] == pytest.approx(gains["without"], abs=1e-3)


def test_a_damaged_description_of_columns_is_refused(trained, tmp_path):
    folder, _ = trained
    with_columns(Corpus.load(folder / "corpus")).save(tmp_path / "corpus", config={}, inputs={})
    changes = {"corpus": str(tmp_path / "corpus"), "item_columns": ["brand"], "epochs": 0.1}
    run_catalogue(catalogue_config(folder, **changes, output=str(tmp_path / "out")))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    for column, message in (({"role": "text"}, "describes no column"), ({"values": ["x"] * 99}, "wider than text_wid")):
        stored = [{**config["item_columns"][0], **column}]
        (tmp_path / "out" / "config.json").write_text(json.dumps({**config, "item_columns": stored}))
        sign(tmp_path / "out")
        with pytest.raises(ArtefactError, match=message):
            load_bundle(tmp_path / "out")


def test_the_rank_of_a_held_out_target_is_that_of_the_whole_distribution(trained):
    folder, _ = trained
    bundle, corpus = load_bundle(folder / "catalogue"), Corpus.load(folder / "corpus")
    heldout = held_out_windows(corpus.valid, bundle.table.sid_numbers, corpus.max_history)
    with torch.inference_mode():
        gains = target_ndcg(bundle.model, heldout)
        for row, gain in enumerate(gains):
            history = torch.from_numpy(heldout["histories"][row : row + 1].astype(np.int64))
            target = int(heldout["labels"][row].max()) - 1
            scores = bundle.model.leaf_log_probs(history)[0]
            rank = 1 + int((scores > scores[target]).sum())
            assert gain == pytest.approx(1 / np.log2(1 + rank) if rank <= 10 else 0)
    assert input_gains(bundle.model, heldout) == {}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            ["colour"],
            r"item_columns names 'colour', which the corpus does not have; its further columns: brand, note, price",
        ),
        (["note"], r"item_columns names 'note', whose role is 'text'"),
    ],
)
def test_columns_that_models_cannot_read_are_refused(trained, tmp_path, columns, message):
    folder, _ = trained
    with_columns(Corpus.load(folder / "corpus")).save(tmp_path / "corpus", config={}, inputs={})
    settings = {"corpus": str(tmp_path / "corpus"), "item_columns": columns, "output": str(tmp_path / "out")}
    with pytest.raises(ConfigError, match=message):
        run_catalogue(catalogue_config(folder, **settings))
    assert not (tmp_path / "out").exists()


def distributions(seed=0, rows=5, size=7):
    torch.manual_seed(seed)
    return torch.randn(rows, size, dtype=torch.float64, requires_grad=True), torch.tensor([0, 3, 6, 2, 2])


def test_expected_reward_is_the_targets_probability():
    """The loss and its gradient in closed form: dE/dx_j = p_t ([j = t] - p_j)."""
    scores, wanted = distributions()
    loss = expected_loss(scores.log_softmax(1), wanted)
    own = scores.detach().softmax(1)[torch.arange(5), wanted]
    assert torch.allclose(loss, -own)
    loss.sum().backward()
    one_hot = torch.nn.functional.one_hot(wanted, 7)
    assert torch.allclose(scores.grad, -own[:, None] * (one_hot - scores.detach().softmax(1)))
    assert torch.autograd.gradcheck(lambda x: expected_loss(x.log_softmax(1), wanted), scores)


def test_grpo_is_the_group_by_hand():
    """A group without a hit has neither loss nor gradient."""
    scores, wanted = distributions()
    log_probs = scores.log_softmax(1)
    size = 4
    loss = grpo_loss(log_probs, wanted, size, SEVEN)
    loss.sum().backward()
    gradient, seen_hit = torch.zeros_like(scores), []
    for row in range(5):
        best = np.argsort(-log_probs[row].detach().numpy(), kind="stable")[:size]
        hit = best == wanted[row].item()
        seen_hit.append(hit.any())
        if not hit.any():
            assert loss[row] == 0
            continue
        rank_penalty = -1 / np.log2(np.arange(size) + 2)
        rewards = np.where(hit, 1.0, rank_penalty / -rank_penalty.sum())
        advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        assert loss[row].item() == pytest.approx(-np.mean(advantages * log_probs[row].detach().numpy()[best]), rel=1e-4)
        for position, advantage in zip(best, advantages, strict=True):
            one_hot = torch.nn.functional.one_hot(torch.tensor(position), 7)
            gradient[row] -= advantage / size * (one_hot - scores[row].detach().softmax(0))
    assert any(seen_hit) and not all(seen_hit)
    assert torch.allclose(scores.grad, gradient, atol=1e-5)


def first_step(monkeypatch, config):
    """The batch of a run's first step, its loss and its gradient."""
    found = []
    step = CatalogueTrainer.training_step

    def note(self, model, inputs, *words):
        loss = step(self, model, inputs, *words)
        assert {module.p for module in model.modules() if isinstance(module, Dropout)} == {config.dropout, 0.0}
        batch = {name: value.cpu() for name, value in inputs.items()}
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        found.append((batch, float(loss), gradient.cpu()))
        raise Killed

    monkeypatch.setattr(CatalogueTrainer, "training_step", note)
    with pytest.raises(Killed):
        run_catalogue(config)
    monkeypatch.undo()
    return found[0]


@pytest.mark.parametrize("objective", ["likelihood", "expected", "grpo"])
def test_the_loss_of_a_step_by_hand(trained, tmp_path, monkeypatch, objective):
    """Weighted by recency, and without what the windows themselves added to the counts."""
    folder, _ = trained
    with several_files():  # as of the checkpoint's
        replace(Corpus.load(folder / "corpus"), split="global time").save(tmp_path / "corpus", config={}, inputs={})
    config = sharpening(
        folder,
        corpus=str(tmp_path / "corpus"),
        output=str(tmp_path / "run"),
        objective=objective,
        dropout=0.0,
        recency=3.0,
        generations=8,
    )
    batch, loss, _ = first_step(monkeypatch, config)
    labelled = batch["labels"] > 0
    wanted, weights = batch["labels"][labelled] - 1, batch["weights"][labelled]
    assert weights.std() > 0.1
    with torch.no_grad():
        model = load_bundle(folder / "catalogue").model
        log_probs = model(
            histories=batch["histories"], labels=batch["labels"], distribution=True, leave_out=True
        ).logits
    own = log_probs.gather(1, wanted[:, None])[:, 0]
    table = load_bundle(folder / "catalogue").table
    each = {
        "likelihood": -own,
        "expected": expected_loss(log_probs, wanted),
        "grpo": grpo_loss(log_probs, wanted, 8, table),
    }[objective]
    assert loss == pytest.approx(float((weights * each).sum() / len(wanted)), rel=1e-4)


def test_dropout_is_that_of_the_settings(trained, tmp_path, monkeypatch):
    """A checkpoint brings none along; `first_step` checks it, here and where there is none."""
    folder, _ = trained
    first_step(monkeypatch, sharpening(folder, output=str(tmp_path / "run"), dropout=0.25))


@pytest.mark.parametrize("objective", ["expected", "grpo"])
def test_the_kl_term_is_nothing_at_the_start(trained, tmp_path, monkeypatch, objective):
    folder, _ = trained
    found = [
        first_step(
            monkeypatch,
            sharpening(
                folder, output=str(tmp_path / str(beta)), objective=objective, dropout=0.0, generations=4, beta=beta
            ),
        )
        for beta in (0.0, 10.0)
    ]
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-4, abs=1e-5)
    assert torch.allclose(found[0][2], found[1][2], atol=1e-4)
    assert found[0][2].abs().max() > 1e-3


def test_beta_keeps_the_model_near_its_start(trained, tmp_path):
    folder, _ = trained
    start = load_bundle(folder / "catalogue").model
    moved = []
    for beta in (0.0, 100.0):
        config = sharpening(folder, output=str(tmp_path / str(beta)), beta=beta, dropout=0.0, learning_rate=1e-3)
        run_catalogue(config)
        model = AutoModelForCausalLM.from_pretrained(last_checkpoint(config.output))
        seen = torch.arange(1, 1 + N_ITEMS)[:, None]
        with torch.no_grad():
            before, after = start.leaf_log_probs(seen), model.leaf_log_probs(seen)
        moved.append(float((after.exp() * (after - before)).sum(1).mean()))
    assert 0 <= moved[1] < 0.5 * moved[0]


def test_the_stage_trains_and_writes(trained):
    folder, result = trained
    assert not result.up_to_date and result.counts["steps"] == 10
    assert (result.counts["windows"], result.counts["targets"]) == (40, 120)
    losses = logged(folder / "catalogue", "eval_loss")
    assert losses[-1] < losses[0]
    manifest = read_manifest(folder / "catalogue", "checkpoint")
    bundle = load_bundle(folder / "catalogue")
    assert isinstance(bundle.model, CatalogueModel)
    assert manifest["counts"]["parameters"] == sum(parameter.numel() for parameter in bundle.model.parameters())


def test_its_checkpoint_is_evaluated_like_any_other(trained, tmp_path):
    """And the metrics are those of the whole distribution, sorted."""
    folder, _ = trained
    config = EvalConfig(
        checkpoint=str(folder / "catalogue"),
        corpus=str(folder / "corpus"),
        sids=str(folder / "sids"),
        output=str(tmp_path / "eval"),
        beams=N_ITEMS,
        ks=[1, 10],
        resamples=10,
    )
    result = run_eval(config)
    bundle, corpus = load_bundle(folder / "catalogue"), Corpus.load(folder / "corpus")
    numbers = bundle.table.sid_numbers
    ranks = []
    for history, target in zip(corpus.rows("test").histories, corpus.rows("test").targets, strict=True):
        with torch.no_grad():
            found = bundle.model.leaf_log_probs(torch.from_numpy(numbers[history] + 1)[None])[0]
        ranks.append(1 + int((found > found[numbers[target]]).sum()))
    found = result.metrics["recommenders"]["beam search"]["sid"]
    gains = np.where(np.array(ranks) <= 10, 1 / np.log2(1 + np.array(ranks)), 0.0)
    assert found["NDCG@10"][0] == pytest.approx(gains.mean())
    assert found["HR@1"][0] == pytest.approx(np.mean(np.array(ranks) == 1))


def test_training_learns_the_order_of_the_items(tmp_path):
    make_inputs(tmp_path, users=100)
    result = run_catalogue(catalogue_config(tmp_path, epochs=8, learning_rate=1e-2))
    assert result.counts["best"]["eval_ndcg@10"] > 0.9


@pytest.mark.parametrize("objective", ["expected", "grpo"])
def test_a_reward_is_raised_and_the_start_is_never_undercut(trained, tmp_path, caplog, objective):
    folder, before = trained
    config = sharpening(folder, output=str(tmp_path / "better"), objective=objective, generations=8)
    run_catalogue(config)
    corpus, table = Corpus.load(folder / "corpus"), SidTable.load_index(folder / "sids")
    batch = {name: torch.from_numpy(values) for name, values in sid_windows(corpus, table, 0.0)[0].items()}
    rewards = []
    for path in (folder / "catalogue", last_checkpoint(config.output)):
        model = AutoModelForCausalLM.from_pretrained(path)
        with torch.no_grad():
            log_probs = model(**batch, distribution=True, leave_out=True).logits
        rewards.append(float(log_probs.gather(1, batch["labels"][batch["labels"] > 0][:, None] - 1).exp().mean()))
    assert rewards[1] > 1.1 * rewards[0]
    first = log_of(tmp_path / "better")[0]
    assert first["step"] == 0
    assert first["eval_ndcg@10"] == pytest.approx(before.counts["best"]["eval_ndcg@10"])
    caplog.clear()
    with caplog.at_level("WARNING", "minionerec"):
        # Decay that halves the weights at every step leaves nothing of what was learned.
        result = run_catalogue(replace(config, output=str(tmp_path / "worse"), learning_rate=1e-3, weight_decay=500.0))
    assert "Training did not improve validation NDCG@10" in caplog.text
    assert result.counts["best_step"] == 0
    assert result.counts["best"]["eval_ndcg@10"] == pytest.approx(before.counts["best"]["eval_ndcg@10"])
    assert same_weights(tmp_path / "worse", folder / "catalogue")


def test_more_likelihood_resumes_from_a_checkpoint(trained, tmp_path):
    folder, before = trained
    config = catalogue_config(folder, checkpoint=str(folder / "catalogue"), output=str(tmp_path / "more"), epochs=1)
    result = run_catalogue(config)
    assert result.counts["best"]["eval_loss"] < before.counts["best"]["eval_loss"]


def test_vectors_and_the_starting_checkpoint_are_inputs(trained, tmp_path):
    folder, _ = trained
    run_embed(EmbedConfig(corpus=str(folder / "corpus"), output=str(tmp_path / "vectors"), dimensions=8))
    vectors = {"vectors": str(tmp_path / "vectors")}
    assert set(catalogue_config(folder, **vectors).inputs()) == {"corpus", "sids", "vectors"}
    assert set(sharpening(folder, **vectors).inputs()) == {"corpus", "sids", "checkpoint"}


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint": "catalogue", "objective": "grpo", "beta": 0.1, "generations": 4},
        SAMPLED,
    ],
    ids=["reward", "sampled"],
)
def test_a_stopped_run_ends_as_if_nothing_had_happened(trained, tmp_path, monkeypatch, changes):
    """It remembers its start, which KL is measured against and which was validated first, and what is drawn next."""
    monkeypatch.chdir(trained[0])
    whole = catalogue_config(trained[0], output=str(tmp_path / "whole"), **changes)
    run_catalogue(whole)
    config = replace(whole, output=str(tmp_path / "stopped"))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 5)
        run_catalogue(config)
    run_catalogue(config)
    assert same_weights(tmp_path / "stopped", tmp_path / "whole")
    assert same_weights(last_checkpoint(tmp_path / "stopped"), last_checkpoint(tmp_path / "whole"))


def test_killed_in_the_middle_it_ends_as_if_nothing_had_happened(trained, tmp_path):
    folder, _ = trained
    config = catalogue_config(folder, output=str(tmp_path / "killed"))
    run = partial(stage_in_child, run_catalogue, tmp_path, config)
    run(Point("step", 8))
    assert run()["step"] == 5
    assert same_weights(tmp_path / "killed", folder / "catalogue")
    record, steps = read_run_record(tmp_path / "killed"), read_manifest(tmp_path / "killed")["counts"]["steps"]
    assert (record.parts, record.resumed_from) == (2, steps - 5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"towers": 2}, "towers.1."),
        ({"without": ["learned_vectors"]}, "items"),
        ({"without": ["code_vectors"]}, "codes."),
        ({"vectors": ""}, "text_map"),
        ({"without": ["pointer"]}, "pointer"),
        ({"reach": 0}, ("gain", "distance", "commonness")),
    ],
)
def test_every_switch_decides_what_is_trained(trained, tmp_path, changes, words):
    folder, _ = trained
    config = catalogue_config(folder, output=str(tmp_path / "switched"), epochs=0.4, evals_per_epoch=1, **changes)
    assert run_catalogue(config).counts["steps"] == 2
    bundle = load_bundle(config.output)
    usual = {name for name, _ in load_bundle(folder / "catalogue").model.named_parameters()}
    names = {name for name, _ in bundle.model.named_parameters()}
    assert usual != names
    assert all(any(word in name for word in ([words] if isinstance(words, str) else words)) for name in usual ^ names)
    seen = torch.tensor([[1, 2, 3]])
    save_checkpoint(bundle, tmp_path / "again")
    again = load_bundle(tmp_path / "again").model
    assert torch.equal(again.leaf_log_probs(seen), bundle.model.leaf_log_probs(seen))


def test_another_seed_gives_other_weights(trained, tmp_path):
    """The same settings give the same ones: tests/hostile/test_life.py."""
    folder, _ = trained
    run_catalogue(catalogue_config(folder, output=str(tmp_path / "other"), seed=1))
    assert not same_weights(tmp_path / "other", folder / "catalogue")


@pytest.fixture
def ragged(trained, tmp_path):
    """Settings for 35 windows, which differ in their number of targets, in steps of 8 and a last one of 3."""
    folder, _ = trained
    corpus = Corpus.load(folder / "corpus")
    rows = corpus.rows("train")
    numbers = np.arange(len(rows) * 35 // 40)
    rows = rows.take(numbers[(numbers % 3 < 2) | (numbers % 4 > 0)])
    replace(corpus, train=rows).save(tmp_path / "corpus", config={}, inputs={})
    settings = {
        "corpus": str(tmp_path / "corpus"),
        "dropout": 0.0,
        "epochs": 1,
        "evals_per_epoch": 1,
        "device_batch_size": 4,
        "max_grad_norm": 1e9,
    }
    first = catalogue_config(folder, **settings, output=str(tmp_path / "likelihood"))
    return [
        first,
        sharpening(folder, **settings, checkpoint=first.output, output=str(tmp_path / "expected"), beta=0.1),
    ]


def near(one, two):
    """Whether two trainings ended at the same weights, up to rounding."""
    return nearly_same_weights(*(last_checkpoint(config.output) for config in (one, two)), one.learning_rate)


def test_micro_batches_and_processes_add_up(ragged, tmp_path):
    for config in ragged:
        run_catalogue(config)
        whole = replace(config, output=f"{config.output}_whole", device_batch_size=8)
        run_catalogue(whole)
        assert near(config, whole), config.objective
    for config in ragged:  # of the last step the second process has nothing
        shared = replace(config, output=f"{config.output}_shared")
        stage_in_processes(run_catalogue, shared, 2)
        assert near(config, shared), config.objective
        for name in ("loss", "eval_loss", "eval_ndcg@10"):
            assert logged(shared.output, name) == pytest.approx(logged(config.output, name), rel=1e-4), name


@pytest.mark.parametrize("kind", ["likelihood", "expected", "sampled"])
def test_parts_that_fit_the_memory_change_nothing(ragged, tmp_path, monkeypatch, limits, kind):
    """Of a step and of validation; the first parts of a step whose memory ends are not counted twice."""
    changes = {"device_batch_size": 8, "output": str(tmp_path / "whole")}
    if kind == "sampled":
        changes |= {**SAMPLED, "weight_decay": 0.1}
    if kind == "expected":
        run_catalogue(ragged[0])  # the checkpoint that it begins with
    whole = replace(ragged[kind == "expected"], **changes)
    run_catalogue(whole)
    alike = replace(whole, output=str(tmp_path / "alike"), device_batch_size=0)
    run_catalogue(alike)  # all fits, so nothing is divided
    assert same_weights(alike.output, whole.output) and log_of(Path(alike.output)) == log_of(Path(whole.output))
    small, lowered = (replace(alike, output=str(tmp_path / name)) for name in ("small", "lowered"))
    in_parts(run_catalogue, small, tokens=8)
    ended = short_of_memory(monkeypatch, CatalogueTrainer)
    in_parts(run_catalogue, lowered, tokens=32)
    assert min(ended) > 1 and read_run_record(lowered.output).batch.tokens < 32
    for config in (small, lowered):
        assert near(config, whole), config.output
        assert logged(config.output, "eval_loss") == pytest.approx(logged(whole.output, "eval_loss"), rel=1e-4)


def test_mixed_bfloat16_trains(trained, tmp_path):
    folder, _ = trained
    result = run_catalogue(catalogue_config(folder, output=str(tmp_path / "mixed"), mixed_bf16=True, epochs=1))
    assert np.isfinite(result.counts["best"]["eval_loss"])
    assert load_bundle(tmp_path / "mixed").model.dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "grpo"}, "objective grpo continues from a trained model; give --checkpoint"),
        ({"beta": 0.1}, "beta is 0.1, but the objective likelihood has no KL term; set it to 0"),
        ({"eval_examples": 0}, "eval_examples is 0; the best checkpoint is chosen by ranking validation examples"),
        ({"vectors": "", "without": ["learned_vectors", "code_vectors"]}, "SIDs have no vector: vectors is empty"),
        ({"batch_size": 10}, r"10 is no multiple of 8 x 1 device\(s\) = 8"),
        ({"loss_examples": 0}, "loss_examples is 0; say how many, or -1 for all"),
        ({**SAMPLED, "max_grad_norm": 1.0}, r"max_grad_norm is 1, .* set max_grad_norm to 0\."),
        ({**SAMPLED, "objective": "expected", "checkpoint": "x"}, "expected needs the probability of every SID"),
    ],
)
def test_bad_settings(trained, tmp_path, changes, message):
    folder, _ = trained
    with pytest.raises(ConfigError, match=message):
        run_catalogue(catalogue_config(folder, **{"output": str(tmp_path / "bad"), **changes}))
    assert not (tmp_path / "bad").exists()


def test_what_does_not_belong_together_is_refused(trained, tmp_path):
    folder, _ = trained
    with pytest.raises(ConfigError, match="generations is 25, but the catalogue has 24 distinct SIDs; ask for fewer"):
        run_catalogue(sharpening(folder, output=str(tmp_path / "bad"), objective="grpo", generations=25))
    with pytest.raises(ArtefactError, match="holds a 'corpus', expected a 'sids'"):
        run_catalogue(catalogue_config(folder, sids=str(folder / "corpus"), output=str(tmp_path / "bad")))
    with pytest.raises(ArtefactError, match="holds a 'sids', expected a 'checkpoint'"):
        run_catalogue(sharpening(folder, checkpoint=str(folder / "sids"), output=str(tmp_path / "bad")))
    corpus = Corpus.load(folder / "corpus")
    fewer = corpus.train.take(slice(-1))
    Corpus(corpus.items, fewer, corpus.valid, corpus.test, corpus.split, corpus.max_history).save(
        tmp_path / "corpus", config={}, inputs={}
    )
    with pytest.raises(ArtefactError, match=r"trained on another corpus than .*corpus; its transition counts differ"):
        run_catalogue(sharpening(folder, corpus=str(tmp_path / "corpus"), output=str(tmp_path / "bad")))
    mixed = mixed_sids(folder, tmp_path / "mixed")
    with pytest.raises(ConfigError, match="needs SIDs of one length"):
        run_catalogue(catalogue_config(folder, sids=mixed, output=str(tmp_path / "bad")))
    with pytest.raises(ArtefactError, match="was trained on the SID table"):
        run_catalogue(sharpening(folder, sids=mixed, output=str(tmp_path / "bad")))


def test_the_sampled_loss_learns_what_the_exact_one_does(tmp_path):
    make_inputs(tmp_path, users=100)
    result = run_catalogue(sampling(tmp_path, epochs=8, learning_rate=1e-2))
    assert result.counts["best"]["eval_ndcg@10"] > 0.9


def test_rows_that_are_not_read_end_where_adamw_over_all_rows_leaves_them(trained, tmp_path, monkeypatch):
    """With validations in between, which rank with rows that are up to date, and a last step that is none."""
    folder, _ = trained
    config = sampling(folder, output=str(tmp_path / "rows"), epochs=3, evals_per_epoch=0.5, weight_decay=0.1)
    run_catalogue(config)
    monkeypatch.setattr(tower, "take_rows", lambda table, rows: table[rows])  # so that gradients are dense
    run_catalogue(replace(config, output=str(tmp_path / "dense")))
    for path in (Path, last_checkpoint):
        assert nearly_same_weights(*(path(tmp_path / name) for name in ("rows", "dense")), config.learning_rate)
    one, other = (logged(tmp_path / name, "eval_loss") for name in ("rows", "dense"))
    assert one == pytest.approx(other, rel=1e-3)


@pytest.fixture(scope="module")
def sampled(trained):
    """Settings of a run of the sampled loss, which has ended."""
    config = sampling(trained[0], output=str(trained[0] / "sampled"))
    run_catalogue(config)
    return config


def test_more_epochs_of_a_sampled_run(trained, tmp_path):
    folder, _ = trained
    config = sampling(folder, output=str(tmp_path / "run"), schedule="constant")
    run_catalogue(config)
    run_catalogue(replace(config, epochs=3))
    run_catalogue(replace(config, epochs=3, output=str(tmp_path / "whole")))
    assert same_weights(tmp_path / "run", tmp_path / "whole")


def test_blocks_change_nothing_in_a_run(sampled, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "SIDS_AT_ONCE", 7)
    run_catalogue(replace(sampled, output=str(tmp_path / "blocks")))
    assert same_weights(tmp_path / "blocks", sampled.output)
    for figure in ("eval_loss", "eval_ndcg@10"):
        assert logged(tmp_path / "blocks", figure) == pytest.approx(logged(sampled.output, figure), rel=1e-5)


@pytest.mark.parametrize("make", [catalogue_config, sampling])
def test_a_corpus_of_several_blocks_is_read_block_by_block(trained, tmp_path, monkeypatch, make, caplog):
    """The same windows in another order; a stopped run goes on, and nothing is left of the arrays."""
    folder, _ = trained
    keep_in_blocks(monkeypatch)
    config = make(folder, output=str(tmp_path / "whole"), epochs=4)
    with caplog.at_level("INFO", "minionerec"):
        result = run_catalogue(config)
    assert "has 120 training examples: 4 blocks" in caplog.text
    assert (result.counts["windows"], result.counts["targets"]) == (40, 120)
    assert np.diff(logged(result.output, "eval_loss")).sum() < 0
    stopped = replace(config, output=str(tmp_path / "stopped"))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 5)
        run_catalogue(stopped)
    assert (tmp_path / "stopped.partial" / "rows").is_dir()
    run_catalogue(stopped)
    assert same_weights(stopped.output, config.output)
    assert not list(tmp_path.rglob("*.npy"))
    every = run_catalogue(make(folder, output=str(tmp_path / "every"), epochs=1, splits=["train", "valid", "test"]))
    assert every.counts["targets"] == 200


def test_the_loss_of_fewer_validation_rows_changes_nothing_else(sampled, tmp_path, monkeypatch):
    seen = []
    held_out = stage.held_out_windows
    monkeypatch.setattr(stage, "held_out_windows", lambda *of: seen.append(held_out(*of)) or seen[-1])
    many, some = (replace(sampled, loss_examples=n, output=str(tmp_path / str(n))) for n in (10**6, 7))
    run_catalogue(many)
    run_catalogue(some)
    assert same_weights(some.output, sampled.output)
    assert logged(some.output, "eval_ndcg@10") == logged(sampled.output, "eval_ndcg@10")
    assert logged(some.output, "eval_loss") != logged(sampled.output, "eval_loss") == logged(many.output, "eval_loss")
    everything, few = ([row.tobytes() for row in part["histories"]] for part in seen)
    assert len(few) == 7 and len(everything) > 7 and set(few) <= set(everything)
    assert read_manifest(some.output)["settings"]["loss_examples"] == 7


def test_the_sampled_loss_has_an_optimiser_of_its_own(trained, tmp_path, monkeypatch):
    folder, _ = trained
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ConfigError, match="an optimiser of its own, but this launch uses DeepSpeed"):
        run_catalogue(sampling(folder, output=str(tmp_path / "bad")))


def test_two_processes_of_the_sampled_loss_equal_one(ragged, tmp_path):
    """The same windows and the same draws: losses and weights up to rounding; between the processes to the bit."""
    config = replace(ragged[0], **SAMPLED, epochs=2, weight_decay=0.1)
    one, two = (replace(config, output=str(tmp_path / name), device_batch_size=2) for name in ("one", "two"))
    run_catalogue(one)
    stage_in_processes(partial(keeping_weights, run_catalogue), two, 2)
    assert near(one, two)
    logs = [logged(each.output, "loss") for each in (one, two)]
    assert logs[0] == pytest.approx(logs[1], rel=1e-4) and len(logs[0]) >= 2
    assert logged(one.output, "eval_loss") == pytest.approx(logged(two.output, "eval_loss"), rel=1e-4)
    first, second = (torch.load(f"{two.output}.rank{rank}") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_processes_of_the_sampled_loss_draw_different_sids(ragged, tmp_path):
    """With dropout and a run that goes on, which have no equal in one process."""
    changes = {**SAMPLED, "dropout": 0.2, "schedule": "constant"}
    config = replace(ragged[0], **changes, output=str(tmp_path / "run"))
    stage_in_processes(run_catalogue, config, 2)
    longer = replace(config, epochs=2)
    stage_in_processes(partial(keeping_weights, run_catalogue), longer, 2)
    first, second = (torch.load(f"{longer.output}.rank{rank}") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert np.isfinite(logged(longer.output, "eval_loss")).all()


def test_language_models_and_catalogue_models_have_their_own_stages(trained, tmp_path):
    folder, _ = trained
    run_sft(sft_config(folder, output=str(tmp_path / "sft"), epochs=0.2, evals_per_epoch=1))
    with pytest.raises(ConfigError, match=r"holds a Qwen2ForCausalLM, not a catalogue model\. .* minionerec grpo\."):
        run_catalogue(sharpening(folder, checkpoint=str(tmp_path / "sft"), output=str(tmp_path / "bad")))
    with pytest.raises(ConfigError, match=r"is a catalogue model, .* minionerec train-catalogue --objective expected"):
        run_grpo(grpo_config(folder, checkpoint=str(folder / "catalogue"), output=str(tmp_path / "bad")))
