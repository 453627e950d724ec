"""A language model that is conditioned on request features: prompts, teacher, training and evaluation."""

from collections import Counter

import pytest
import torch
from support.evaluation import config as eval_config
from support.examples import keep_in_blocks, several_files, tokenised_rows
from support.gaps import GAP, SAME, gap_codes, make_gap_corpus
from support.training import catalogue_config, grpo_config, make_inputs, sft_config

from minionerec.core.artefacts import read_manifest
from minionerec.core.errors import ConfigError
from minionerec.data.corpus import Corpus
from minionerec.data.names import UNKNOWN
from minionerec.metrics.predictions import Predictions
from minionerec.models.backbone.bundle import load_bundle
from minionerec.models.decoding.trie import Trie
from minionerec.models.prompts.examples import ExampleBuilder, encode_prompt, special_texts
from minionerec.pipeline import training_run
from minionerec.pipeline.evaluate import run_eval
from minionerec.pipeline.grpo import run_grpo
from minionerec.pipeline.sft import run_sft
from minionerec.pipeline.train_catalogue import run_catalogue
from minionerec.pipeline.training_run import load_teacher
from minionerec.training.packing import TreeCollator


def conditioned(folder, **changes):
    settings = {"context": ["gap"], "all_positions": False, "evals_per_epoch": 0.5, "layers": 1}
    settings |= {"batch_size": 16, "device_batch_size": 16}
    return sft_config(folder, **{**settings, **changes})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A language model distilled from a catalogue model, both conditioned."""
    folder = tmp_path_factory.mktemp("language")
    make_inputs(folder)
    (folder / "corpus").rename(folder / "chains")
    with several_files():
        make_gap_corpus(folder / "corpus")
    shape = {"epochs": 4, "learning_rate": 2e-2, "evals_per_epoch": 0.5, "context": ["gap"]}
    run_catalogue(catalogue_config(folder, **shape))
    run_sft(conditioned(folder, teacher=str(folder / "catalogue"), epochs=14, learning_rate=5e-3, dropout=0.0))
    return folder


@pytest.fixture(scope="module")
def reading(made):
    """The model, the builder of its examples, and their corpus."""
    bundle, corpus = load_bundle(made / "sft"), Corpus.load(made / "corpus")
    return bundle, ExampleBuilder(corpus, bundle.table, bundle.wording, special_texts(bundle.tokenizer)), corpus


def test_prompts_hold_the_code_as_one_token_of_which_some_are_hidden(reading):
    bundle, builder, corpus = reading
    assert bundle.wording.context == (GAP,) and bundle.wording.tokens == ["<gap_1>", "<gap_2>"]
    marks = bundle.tokenizer.convert_tokens_to_ids(bundle.wording.tokens)
    rows = tokenised_rows(bundle, builder, bundle.max_prompt_length)
    codes, known = gap_codes(corpus.train).tolist(), 0
    sid = len(bundle.table.token_tuples[0])
    for ids, labels, (given,), code in zip(rows["input_ids"], rows["labels"], rows["contexts"], codes, strict=True):
        first = next(position for position, label in enumerate(labels) if label >= 0)
        assert given in (code, UNKNOWN) and len(ids) - first == sid
        assert [token for token in ids if token in marks] == ([marks[code - 1]] if given else [])
        assert not given or ids[first - 1] == marks[code - 1]
        known += given != UNKNOWN
    assert 0.8 * len(codes) < known < len(codes)
    asked = encode_prompt(bundle.tokenizer, [builder.prompt("next_sid", history=[3], context=[SAME])], None)[0][0]
    assert len(asked) == 1 + sid + 1 and asked[-1] == marks[0]


def test_the_teacher_is_given_what_the_prompt_has(made, reading):
    bundle, builder, corpus = reading
    rows = tokenised_rows(bundle, builder, bundle.max_prompt_length)
    examples = [{name: column[position] for name, column in rows.items()} for position in range(12)]
    collate = TreeCollator(64, with_teacher=True)
    batch, unconditioned = collate(examples), collate([{**example, "contexts": []} for example in examples])
    contexts = [codes[0] for codes in rows["contexts"][:12]]
    assert sorted(batch["contexts"][:, 0].tolist()) == sorted(contexts) and unconditioned["contexts"].shape == (12, 0)
    numbers = bundle.table.sid_numbers + 1
    asked = {
        (tuple(history[: slot + 1]), context)
        for history, slot, context in zip(
            (batch["histories"][row].tolist() for row in batch["rows"].tolist()),
            batch["slots"].tolist(),
            batch["contexts"][:, 0].tolist(),
            strict=True,
        )
    }
    histories = corpus.train.histories[:12]
    assert asked == {(tuple(numbers[row].tolist()), context) for row, context in zip(histories, contexts, strict=True)}
    trie = Trie.build(bundle.table.codes, bundle.code_ids)
    teacher = load_teacher(made / "catalogue", bundle.table, trie, context=bundle.wording.context)
    one, other = teacher(batch), teacher(unconditioned)
    assert not torch.allclose(one.probabilities, other.probabilities, atol=0.05)
    nodes = load_bundle(made / "catalogue").model.masses(
        batch["histories"], batch["rows"], batch["slots"], batch["contexts"]
    )
    first = trie.level_start[1], trie.level_start[2]
    wanted = nodes[:, first[0] : first[1]].exp()
    depth = one.positions.view(len(batch["rows"]), -1)[:, 0]
    at = torch.stack([(one.positions == position).nonzero()[0, 0] for position in depth])
    assert torch.allclose(one.probabilities[at][:, : wanted.shape[1]], wanted, atol=1e-4)


def test_it_learns_the_gap_and_is_evaluated_with_it_or_not(made, tmp_path):
    found = {}
    for tell in (True, False):
        config = eval_config(
            made,
            checkpoint=str(made / "sft"),
            output=str(tmp_path / str(tell)),
            beams=10,
            ks=[1, 10],
            resamples=10,
            context=tell,
        )
        metrics = run_eval(config).metrics["recommenders"]["beam search"]["sid"]
        found[tell] = metrics["NDCG@10"][0], read_manifest(config.output)["counts"].get("rows_with_context", 0)
        assert Predictions.load(config.output).given == (("gap",) if tell else ())
    assert (found[True][1], found[False][1]) == (60, 0)
    assert found[True][0] > 0.85
    assert found[False][0] < found[True][0] - 0.1


def test_what_cannot_be_conditioned_is_refused(made, tmp_path):
    with pytest.raises(
        ConfigError, match="all_positions needs prompts that are the bare history, but context gives gap"
    ):
        run_sft(conditioned(made, all_positions=True, output=str(tmp_path / "bad")))
    assert not (tmp_path / "bad").exists()


@pytest.fixture
def asked(monkeypatch):
    """Histories and contexts of what a teacher is asked from now on."""
    found, answer = [], training_run.soft_targets

    def note(model, trie, batch):
        histories = [[sid for sid in history if sid] for history in batch["histories"][batch["rows"]].tolist()]
        found.extend(zip(histories, batch["contexts"][:, 0].tolist(), strict=True))
        return answer(model, trie, batch)

    monkeypatch.setattr(training_run, "soft_targets", note)
    return found


def beyond_training(made, asked):
    """What was asked that is no training example with its context, or more often than it is one."""
    corpus, number = Corpus.load(made / "corpus").train, load_bundle(made / "sft").table.sid_numbers + 1
    contexts = gap_codes(corpus).tolist()
    asked = [(history, context) for history, context in asked if context != UNKNOWN]
    examples = [(number[row].tolist(), context) for row, context in zip(corpus.histories, contexts, strict=True)]
    return Counter(map(str, asked)) - Counter(map(str, examples))


def test_rows_of_several_blocks_are_conditioned_the_same(made, tmp_path, monkeypatch, asked):
    """Each row's context, with its prompt, reaches the teacher."""
    keep_in_blocks(monkeypatch)
    settings = {"epochs": 1, "evals_per_epoch": 1}
    settings |= {"teacher": str(made / "catalogue")}
    result = run_sft(conditioned(made, output=str(tmp_path / "stream"), **settings))
    assert result.counts["rows"] == {"next_sid": 300}
    # A step fewer than there are rows for, as an epoch has no smaller steps.
    monkeypatch.undo()
    assert len(asked) >= 280 and not beyond_training(made, asked)


def test_grpo_gives_the_teacher_what_its_prompts_give(made, tmp_path, asked):
    changes = {"tasks": {"next_sid": 1.0}, "max_steps": 8, "beta": 0.0}
    changes |= {"loss_terms": {"likelihood": 1.0}, "teacher": str(made / "catalogue")}
    run_grpo(grpo_config(made, output=str(tmp_path / "grpo"), **changes))
    assert len(asked) == 64 and len({context for _, context in asked}) > 1
    assert not beyond_training(made, asked)
