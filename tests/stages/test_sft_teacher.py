"""SFT with a teacher and with weights by age: soft targets by hand, what is learned from them, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.checkpoints import save_checkpoint
from support.examples import tokenised_rows, tokenised_windows, user_windows
from support.rounding import assert_near
from support.training import (
    Killed,
    builder_of,
    catalogue_config,
    logged,
    make_inputs,
    sft_config,
)

from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.data.corpus import Corpus
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import ExampleBuilder, special_texts
from minionerec.models.prompts.wording import load_wording
from minionerec.pipeline.sft import run_sft
from minionerec.pipeline.train_catalogue import run_catalogue
from minionerec.pipeline.training_run import load_teacher
from minionerec.sid.table import SidTable
from minionerec.training.distillation import soften
from minionerec.training.packing import TreeCollator
from minionerec.training.sft import SidSftTrainer


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    make_inputs(folder)
    run_catalogue(catalogue_config(folder))
    run_sft(sft_config(folder, epochs=0.2))
    return folder


def batch_of(rows, count):
    examples = [{name: column[position] for name, column in rows.items()} for position in range(count)]
    return TreeCollator(64, with_teacher=True)(examples)


def by_hand(model, table, histories, targets):
    """The teacher's probabilities of next codes along the way to each target, from those of all leaves: summed up."""
    codes = table.distinct_codes
    wanted = []
    for history, target in zip(histories, targets, strict=True):
        with torch.no_grad():
            leaves = model.leaf_log_probs(torch.tensor([history])).exp()[0].numpy()
        below = np.ones(len(codes), dtype=bool)
        for level in range(table.levels):
            shares = {c: leaves[below & (codes[:, level] == c)].sum() for c in set(codes[below, level].tolist())}
            wanted.append({code: share / sum(shares.values()) for code, share in shares.items()})
            below &= codes[:, level] == codes[target, level]
    return wanted


@pytest.mark.parametrize("wording", ["compact", "prose"])
def test_soft_targets_by_hand(trained, wording):
    """At every code of every target, in packed windows as in single rows, also where other tasks stand beside them."""
    bundle, builder, corpus = builder_of(trained, wording)
    teacher = load_teacher(trained / "catalogue", bundle.table, Trie.build(bundle.table.codes, bundle.code_ids))
    if wording == "compact":
        rows = tokenised_windows(bundle, builder, None)
    else:
        rows = tokenised_rows(bundle, builder, 512)
    # An example that no teacher speaks about stands among them, and one whose first target nothing came before.
    rows["slots"][1], rows["histories"][1] = [], []
    rows["slots"][2] = [-1, *rows["slots"][2][1:]]
    batch = batch_of(rows, 6)
    soft = teacher(batch)
    assert torch.allclose(soft.probabilities.sum(1), torch.ones(len(soft.positions)))

    order = sorted((0, 2, 3, 4, 5), key=lambda position: rows["input_ids"][position])
    number = {
        tuple(ids): sid
        for ids, sid in zip(
            (bundle.tokenizer.convert_tokens_to_ids(list(tokens)) for tokens in bundle.table.token_tuples),
            bundle.table.sid_numbers.tolist(),
            strict=True,
        )
    }
    histories, targets = [], []
    for position in order:
        labels = [label for label in rows["labels"][position] if label >= 0]
        size = len(labels) // len(rows["slots"][position])
        for which, slot in enumerate(rows["slots"][position]):
            if slot < 0:
                continue
            histories.append(rows["histories"][position][: slot + 1])
            targets.append(number[tuple(labels[which * size : which * size + 3])])
    wanted = by_hand(load_bundle(trained / "catalogue").model, bundle.table, histories, targets)
    assert len(wanted) == len(soft.positions)
    labels = batch["labels"][0][soft.positions].view(-1, 3).tolist()
    assert [number[tuple(ids)] for ids in labels] == targets
    for position, probabilities in enumerate(wanted):
        found = {
            int(token): float(share)
            for token, share in zip(soft.tokens[position], soft.probabilities[position], strict=True)
            if share > 0
        }
        ids = bundle.code_ids[position % 3]
        assert found == pytest.approx({int(ids[code]): share for code, share in probabilities.items()}, rel=1e-3)
    prompts = {tuple(history) for history in histories}
    numbers = bundle.table.sid_numbers + 1
    assert prompts <= {tuple(numbers[history].tolist()) for history in corpus.rows("train").histories}


def test_a_softened_loss_is_a_mixture_of_two_cross_entropies(trained):
    bundle, builder, _ = builder_of(trained)
    teacher = load_teacher(trained / "catalogue", bundle.table, Trie.build(bundle.table.codes, bundle.code_ids))
    soft = teacher(batch := batch_of(tokenised_windows(bundle, builder, None), 4))
    labels = batch["labels"][0]
    torch.manual_seed(0)
    logits = torch.randn(len(labels), len(bundle.tokenizer), requires_grad=True)
    hard = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    dense = torch.zeros_like(logits).scatter_add(1, soft.tokens, soft.probabilities)
    wanted = 0.7 * torch.nn.functional.cross_entropy(logits, dense, reduction="none") + 0.3 * hard
    found, unchanged = (
        soften(hard, lambda positions, tokens: logits[positions].gather(1, tokens), labels, soft, share)
        for share in (0.7, 0.0)
    )
    assert_near(found, wanted)
    gradients = [torch.autograd.grad(losses.sum(), logits, retain_graph=True)[0] for losses in (found, wanted)]
    assert_near(*gradients, floor=0)
    assert torch.equal(unchanged, hard)


def divergence(folder, teacher, output):
    """Mean divergence of a checkpoint's next codes from the teacher's, over windows."""
    bundle = load_bundle(output)
    corpus = Corpus.load(folder / "corpus")
    builder = ExampleBuilder(corpus, bundle.table, load_wording("compact"), special_texts(bundle.tokenizer))
    teacher = load_teacher(teacher, bundle.table, Trie.build(bundle.table.codes, bundle.code_ids))
    rows = tokenised_windows(bundle, builder, None)
    total = []
    for position in range(8):
        ids = torch.tensor([rows["input_ids"][position]])
        example = {name: column[position] for name, column in rows.items()}
        soft = teacher(TreeCollator(64, with_teacher=True)([example]))
        with torch.no_grad():
            labels = torch.tensor(rows["labels"][position][1:])
            reported = bundle.model(ids).logits[0, :-1][labels >= 0].log_softmax(-1)
        total.append(
            (soft.probabilities * (soft.probabilities.clamp(min=1e-9).log() - reported.gather(1, soft.tokens))).sum(1)
        )
    return float(torch.cat(total).mean())


def test_a_student_comes_near_a_teacher_who_says_something_else(trained, tmp_path):
    """As many steps with a teacher as without, and one validation at the end, so that nothing is chosen."""
    bundle = load_bundle(trained / "catalogue")
    with torch.no_grad():
        for tower in bundle.model.each_tower():
            tower.bias.copy_(2 * torch.randn(tower.bias.shape, generator=torch.Generator().manual_seed(0)))
    save_checkpoint(bundle, tmp_path / "contrary")
    changes = {"all_positions": False, "epochs": 8, "evals_per_epoch": 1 / 8, "dropout": 0.0}
    changes |= {"batch_size": 4, "device_batch_size": 4}
    found = {}
    for name, teacher in (("alone", {}), ("distilled", {"teacher": str(tmp_path / "contrary"), "teacher_share": 1.0})):
        run_sft(sft_config(trained, output=str(tmp_path / name), **changes, **teacher))
        found[name] = divergence(trained, tmp_path / "contrary", tmp_path / name)
    assert found["distilled"] < 0.4 * found["alone"]
    weights = [load_bundle(tmp_path / name).model.state_dict().keys() for name in found]
    assert weights[0] == weights[1]


def test_variants_are_further_rows_that_the_teacher_scores(trained, tmp_path):
    changes = {"epochs": 0.2, "teacher": str(trained / "catalogue")}
    counts = [
        run_sft(sft_config(trained, output=str(tmp_path / str(variants)), variants=variants, **changes)).counts
        for variants in (0, 2)
    ]
    windows = counts[0]["rows"]["next_sid"]
    assert counts[1]["rows"]["next_sid"] == 3 * windows
    assert counts[0]["tokens"] < counts[1]["tokens"] < 3 * counts[0]["tokens"]  # some items are left out


def test_evaluation_measures_the_plain_loss(trained, tmp_path):
    """What validation says is comparable with and without a teacher: at step 0 it is the same."""
    logs = []
    for name, teacher in (("alone", {}), ("distilled", {"teacher": str(trained / "catalogue")})):
        output = tmp_path / name
        run_sft(sft_config(trained, output=str(output), epochs=1, learning_rate=1e-12, **teacher))
        logs.append(logged(output, "eval_loss"))
    assert logs[0] == pytest.approx(logs[1], rel=1e-5)


def test_newer_targets_weigh_more(trained, tmp_path, monkeypatch):
    """In rows and in windows alike; the loss of a step is the weighted sum."""
    bundle, builder, corpus = builder_of(trained)
    by_time = replace(corpus, split="global time")
    builder = ExampleBuilder(by_time, bundle.table, load_wording("compact"), special_texts(bundle.tokenizer))
    rows = tokenised_rows(bundle, builder, 512, recency=2.0)
    each = np.array([weights[0] for weights in rows["weights"]])
    assert each.mean() == pytest.approx(1)
    assert np.allclose(np.diff(np.log(each)), 2.0 / len(each), rtol=1e-3)
    windows = tokenised_windows(bundle, builder, user_windows(by_time), recency=2.0)
    of_labels = [
        weight
        for labels, weights in zip(windows["labels"], windows["weights"], strict=True)
        for label, weight in zip(labels, weights, strict=True)
        if label >= 0
    ]
    assert np.allclose(sorted(of_labels), np.sort(np.repeat(each, 3)))

    by_time.save(tmp_path / "corpus", config={}, inputs={})
    seen = []

    def note(self, model, inputs, *args, **kwargs):
        plain = dict(inputs, weights=torch.ones_like(inputs["weights"]))
        model.eval()
        with torch.no_grad():
            seen.append((inputs["weights"], *(float(self.compute_loss(model, part)) for part in (inputs, plain))))
        raise Killed

    monkeypatch.setattr(SidSftTrainer, "training_step", note)
    with pytest.raises(Killed):
        run_sft(sft_config(trained, corpus=str(tmp_path / "corpus"), output=str(tmp_path / "sft"), recency=2.0))
    ((weights, weighed, plain),) = seen
    assert weights.std() > 0.1
    assert weighed != pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"teacher": "sft"}, ConfigError, "holds a Qwen2ForCausalLM, but a teacher is a catalogue model"),
        ({"teacher": "missing"}, ArtefactError, "missing"),
        ({"teacher": "other"}, ArtefactError, "was trained on the SID table"),
        (
            {"teacher": "catalogue", "tasks": {"title_to_sid": 1.0}, "all_positions": False},
            ConfigError,
            "a teacher applies",
        ),
        ({"variants": 1, "all_positions": False}, ConfigError, "variants of windows; set all_positions to true"),
    ],
)
def test_what_is_refused(trained, tmp_path, changes, error, message):
    if changes.get("teacher") == "other":
        make_inputs(tmp_path)
        codes = np.array([[position % 6, position // 6, 0] for position in range(24)])
        table = SidTable(codes, [f"i{position}" for position in range(24)])
        from minionerec.core.artefacts import write_artefact

        with write_artefact(tmp_path / "sids", "sids", config={}, inputs={"corpus": tmp_path / "corpus"}) as folder:
            table.save_index(folder / "index.json")
        run_catalogue(catalogue_config(tmp_path, output=str(tmp_path / "other"), epochs=0.2))
        changes = {"teacher": str(tmp_path / "other")}
    elif "teacher" in changes:
        changes = {**changes, "teacher": str(trained / changes["teacher"])}
    with pytest.raises(error, match=message):
        run_sft(sft_config(trained, **{"output": str(tmp_path / "sft"), **changes}))
    assert not (tmp_path / "sft").exists()
