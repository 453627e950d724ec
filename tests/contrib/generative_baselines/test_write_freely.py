"""Free texts by stock beam search, against every text that there is, and against one prompt at a time."""

from itertools import product

import pytest
import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from minionerec.contrib.generative_baselines.free_texts import fitting_free_batch, write_freely

SIZE, END = 7, 6


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = Qwen2ForCausalLM(Qwen2Config(vocab_size=SIZE, num_key_value_heads=1, **shape)).eval()
    for parameter in made.parameters():
        parameter.data *= 8
    # What a checkpoint says of generation has no say.
    made.generation_config = GenerationConfig(repetition_penalty=5.0, num_beams=2, max_new_tokens=1)
    return made


@torch.no_grad()
def best_text(model, prompt, most, penalty):
    """The most probable text of all, one that ends early or one that is as long as allowed."""
    words = [token for token in range(SIZE) if token != END]
    texts = [[*text, END] for length in range(most) for text in product(words, repeat=length)]
    texts += [list(text) for text in product(words, repeat=most)]
    lengths = torch.tensor([len(text) for text in texts])
    rows = torch.tensor([[*prompt, *text, *[0] * (most - len(text))] for text in texts])
    steps = model(rows).logits[:, len(prompt) - 1 : -1].double().log_softmax(-1)
    steps = steps.gather(2, rows[:, len(prompt) :, None])[..., 0] * (torch.arange(most) < lengths[:, None])
    return texts[int((steps.sum(1) / lengths**penalty).argmax())]


def written(model, prompts, beams, most, end=END, penalty=0.0):
    tokens = write_freely(model, prompts, beams, most, end, penalty)
    return [[token for token in row if token >= 0] for row in tokens.tolist()]


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_with_beams_enough_the_text_is_the_best_of_all(model, penalty):
    prompts = [[1, 2, 3], [4], [5, 5], [0, 3, 2, 1]]
    found = written(model, prompts, SIZE**2, 3, penalty=penalty)
    assert found == [best_text(model, prompt, 3, penalty) for prompt in prompts]
    assert len({len(text) for text in found}) > 1


def test_a_text_does_not_depend_on_what_else_is_asked(model):
    prompts = [[1, 2, 3, 4, 5, 1], [4], [2, 2], [5, 0, 1]]
    assert written(model, prompts, 3, 6) == [written(model, [prompt], 3, 6)[0] for prompt in prompts]


def test_one_beam_is_greedy(model, caplog):
    prompt, text = [2, 5, 1], []
    while len(text) < 6 and END not in text:
        with torch.no_grad():
            text.append(int(model(torch.tensor([[*prompt, *text]])).logits[0, -1].argmax()))
    assert written(model, [prompt], 1, 6) == [text]
    assert "not valid" not in caplog.text


def test_without_an_end_a_text_is_as_long_as_allowed(model):
    assert [len(text) for text in written(model, [[1], [2, 3]], 2, 4, end=None)] == [4, 4]


def test_a_prompt_is_run_once_for_all_its_beams(model, monkeypatch):
    plain = {"num_beams": 3, "max_new_tokens": 5, "eos_token_id": END, "pad_token_id": 0}
    conditioned = GenerationConfig(**plain, length_penalty=0.0, repetition_penalty=1.0)
    prompts = [[2, 5, 1, 3], [4]]
    whole = [model.generate(torch.tensor([prompt]), generation_config=conditioned)[0] for prompt in prompts]
    wanted = [ids[len(prompt) :] for ids, prompt in zip(whole, prompts, strict=True)]
    run, forward = [], type(model.base_model).forward

    def counted(self, input_ids, **rest):
        run.append(input_ids.numel())
        return forward(self, input_ids, **rest)

    monkeypatch.setattr(type(model.base_model), "forward", counted)
    found = written(model, prompts, 3, 5)
    assert found == [ids.tolist()[: len(own)] for ids, own in zip(wanted, found, strict=True)]
    assert run[0] == 2 * 3 and set(run[1:]) == {2 * 3}  # three prompt tokens and padding, then a token a beam
    assert written(model, [[4]], 3, 5) == found[1:]


def test_how_many_prompts_are_written_for_at_a_time(model):
    """Half of the memory: keys and values of every beam's prompt and text, activations, and candidates."""
    prompts = [[1] * 9] * 33
    span = 3 * (9 + 5)
    values = 2 * 8 * span + 4 * 2 * 8 * span + 9 * (6 * 16 + 4 * 16) + 4 * 9 * span + 12 * 3 * SIZE
    eight = 2 * 4 * values * 8
    assert [fitting_free_batch(model, prompts, 3, 5, memory) for memory in (0, eight - 1, eight)] == [1, 4, 8]
    assert fitting_free_batch(model, prompts, 3, 5, 2**40) == 64
    assert fitting_free_batch(model, prompts[:32], 3, 5, 0) == 32  # for which memory is not asked
