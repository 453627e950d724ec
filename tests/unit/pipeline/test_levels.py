"""The per-level stage: its input, its settings, what it prints."""

import json

import numpy as np
import pytest

from minionerec.core.errors import ArtefactError, ConfigError, DataError
from minionerec.metrics.levels import level_analysis
from minionerec.metrics.predictions import Predictions
from minionerec.metrics.published_json import read_published_json
from minionerec.metrics.tables import format_level_tables
from minionerec.pipeline.config.reports import LevelsConfig
from minionerec.pipeline.levels import run_levels
from minionerec.pipeline.settings import StageConfig, check_settings, parse_settings

T = "<a_1><b_2><c_3>"


def write(path, *lists):
    path.write_text(json.dumps([{"input": "?", "output": T, "predict": list(row)} for row in lists]))
    return str(path)


def test_too_few_predictions_name_entry_and_both_numbers(tmp_path):
    path = write(tmp_path / "p.json", [T, T, T], [T])
    message = r"p\.json: entry 2 has 1 predictions, fewer than the largest K, 3\. .*--ks"
    with pytest.raises(DataError, match=message):
        run_levels(LevelsConfig(predictions=path, ks=[1, 3]))
    with pytest.raises(DataError, match=message):
        run_levels(LevelsConfig(predictions=path))
    assert run_levels(LevelsConfig(predictions=path, ks=[1])).metrics["rows"] == 2
    empty = write(tmp_path / "e.json", [])
    with pytest.raises(DataError, match=r"entry 1 has 0 predictions, fewer than the largest K, 1"):
        run_levels(LevelsConfig(predictions=empty))


def test_configuration_errors(tmp_path):
    with pytest.raises(ConfigError, match=r"predictions is empty; give --predictions"):
        LevelsConfig()
    with pytest.raises(ConfigError, match=r"ks is \[\]; give at least one"):
        LevelsConfig(predictions="y.json", ks=[])
    with pytest.raises(DataError, match=r"nowhere: no such file or directory"):
        run_levels(LevelsConfig(predictions=str(tmp_path / "nowhere")))


def test_it_writes_nothing_and_so_has_no_output():
    config = parse_settings(LevelsConfig, ["--predictions", "p.json", "--ks", "5", "1"])
    check_settings(config)
    assert config.ks == [1, 5]
    assert not isinstance(config, StageConfig)
    with pytest.raises(ConfigError, match="unrecognized arguments: --output x"):
        parse_settings(LevelsConfig, ["--predictions", "p.json", "--output", "x"])


def test_lines_are_the_tables_or_one_object(tmp_path):
    path = write(tmp_path / "p.json", [T, "junk", T])
    result = run_levels(LevelsConfig(predictions=path))
    assert result.text == format_level_tables(
        level_analysis(read_published_json(path), list_length=3, keep_duplicates=True)
    )
    (line,) = run_levels(LevelsConfig(predictions=path, json=True)).lines
    assert json.loads(line) == result.metrics


def test_predictions_changed_by_hand_are_named(tmp_path):
    predictions = Predictions(["u"], np.array([1]), [T], [[1]], [[T]], [[0.0]])
    predictions.save(tmp_path / "p", config={}, inputs={})
    assert run_levels(LevelsConfig(predictions=str(tmp_path / "p"))).metrics["rows"] == 1
    with (tmp_path / "p" / "predictions.parquet").open("ab") as file:
        file.write(b" ")
    with pytest.raises(ArtefactError, match=r"predictions\.parquet: differs from manifest\.json"):
        run_levels(LevelsConfig(predictions=str(tmp_path / "p")))
