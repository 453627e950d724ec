"""The small city's recipe: every step in one process, and what comes out lies between the baselines and the ceiling."""

import pytest

from minionerec.core.artefacts import read_json
from minionerec.pipeline.cli.plan import plan_of
from minionerec.recommend.rankers.baselines import POPULARITY, TRANSITIONS

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]


def test_the_small_city_is_learned_in_part_and_its_report_says_how_much(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for step in plan_of("city/small").values():
        step.spec.function()(step.settings)
    folder = tmp_path / "runs" / "city" / "small"
    known = read_json(folder / "ceiling" / "ceiling.json")
    measured = read_json(folder / "eval" / "metrics.json")["recommenders"]
    ndcg = {name: found["item"]["NDCG@10"][0] for name, found in measured.items()}
    popular, followed, model = ndcg[POPULARITY], ndcg[TRANSITIONS], ndcg["beam search"]
    generated = read_json(folder / "eval_sft" / "metrics.json")["recommenders"]
    language = generated["beam search"]["item"]["NDCG@10"][0]
    assert known["rows"] == measured["beam search"]["rows"]
    assert abs(known["drawn"]["ndcg@10"] - known["ceiling"]["ndcg@10"]) < 3 * known["sigma"]["ndcg@10"]
    assert 0.01 < popular < 0.05 < 0.1 < followed < 0.16
    for trained in (model, language):
        assert popular + 0.01 < trained < known["low"]["ndcg@10"]
    assert 0.3 < known["ceiling"]["ndcg@10"] < 0.4
    assert {name: found for name, found in generated.items() if name != "beam search"} == {
        name: found for name, found in measured.items() if name != "beam search"
    }
    tokens = read_json(folder / "sft" / "manifest.json")["counts"]["tokens"]
    assert 60_000 - 40 < tokens <= 60_000  # no room for another window of ten items and their targets
    page = (folder / "report" / "report.html").read_text(encoding="utf-8")
    assert ">ceiling</th>" in page and f"<td>{known['ceiling']['ndcg@10']:.4f}</td>" in page
