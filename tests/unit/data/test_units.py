"""Units of times that are numbers: one for a whole column, by its magnitude or named, else refused."""

import numpy as np
import pandas as pd
import pytest
from support.builder import read_tables
from support.tables import write_table

from minionerec.core.errors import DataError
from minionerec.data.names import TIME_UNITS
from minionerec.data.source import BadRows
from minionerec.data.units import BEYOND, SMALL, are_digits_of_dates, looks_like, unit_numbers

N = 12
DAYS = pd.date_range("2018-01-31 07:12:44", periods=N, freq="9h")
SECONDS = [int(day.timestamp()) for day in DAYS]


def read(folder, times, allowed=0, kind="csv", **options):
    """The times that are kept, their ticks, and how many rows are bad."""
    (folder / "items.csv").write_text("item_id,title\ni,Tea\n")
    path = write_table(pd.DataFrame({"user_id": "u", "item_id": "i", "timestamp": times}), folder / f"v.{kind}")
    bad = BadRows(allowed)
    source = read_tables(path, folder / "items.csv", bad, **options)
    return source.times.tolist(), source.ticks, bad.counts()["bad_rows"]


def test_every_unit_has_the_years_1973_to_2100():
    for unit, ticks in enumerate(TIME_UNITS.values()):
        years = np.array([1974, 2018, 2099]) - 1970
        assert unit_numbers(years * 365.25 * 86_400 * ticks).tolist() == [unit] * 3
    assert unit_numbers(np.array([-1, 0, 17_500, 20_180_131])).tolist() == [SMALL] * 4
    assert unit_numbers(np.array([9_999_999_999, 20_180_131_071_244])).tolist() == [BEYOND] * 2
    assert looks_like(1_500_000_000) == "seconds since 1970"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("ticks", TIME_UNITS.values())
def test_the_magnitude_of_all_shows_the_unit(tmp_path, ticks, kind):
    times = [time * ticks for time in SECONDS]
    assert read(tmp_path, times, kind=kind) == (times, ticks, 0)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("number", "what"),
    [
        *((number, "no time from 1973 to 2100") for number in (0, -1, 17_562, 9_999_999_999, 20_180_131_071_244)),
        (1_517_382_764_000, "milliseconds since 1970"),
    ],
)
def test_a_number_of_another_magnitude_among_seconds_is_refused(tmp_path, number, what, kind):
    times = [*SECONDS[:4], number, *SECONDS[4:]]
    position = "line 6" if kind == "csv" else "row 5"
    for allowed in (0, 5):
        with pytest.raises(DataError, match=r"column 'timestamp': .* or name the unit with --time_unit") as error:
            read(tmp_path, times, allowed, kind=kind)
        assert position in str(error.value) and f"'{number}'" in str(error.value) and f"like {what}" in str(error.value)


def test_a_unit_that_is_named_holds_for_all_and_others_are_bad_rows(tmp_path):
    times = [*SECONDS[:4], 0, *SECONDS[4:]]
    assert read(tmp_path, times, time_unit="s") == (times, 1, 0)
    times[4] = 1_517_382_764_000
    message = r"line 6, .* '1517382764000' is not a number that is a time from 1678 to 2261 in s"
    with pytest.raises(DataError, match=message):
        read(tmp_path, times, time_unit="s")
    assert read(tmp_path, times, 1, time_unit="s") == (SECONDS, 1, 1)
    assert read(tmp_path, [1.5, 2.25, 7.0], time_unit="ms") == ([1.5, 2.25, 7.0], 1000, 0)
    dates = [str(day.date()) for day in DAYS]
    assert read(tmp_path, dates, time_unit="ms")[1] == 10**9  # dates are dates


def test_numbers_too_small_to_tell_are_an_order(tmp_path):
    assert read(tmp_path, list(range(N))) == (list(range(N)), None, 0)
    with pytest.raises(DataError, match="'0' looks like no time from 1973 to 2100, but '1517382764'"):
        read(tmp_path, [*range(N), SECONDS[0]])


def test_times_that_run_on_through_1973_need_their_unit(tmp_path):
    times = [90_000_000 + 3_000_000 * position for position in range(N)]
    with pytest.raises(DataError, match="--time_unit"):
        read(tmp_path, times)
    assert read(tmp_path, times, time_unit="s") == (times, 1, 0)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("form", ["%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S", "%y%m%d%H%M", "%y%m%d%H%M%S"])
def test_digits_of_dates_are_never_taken_for_a_unit(tmp_path, form, kind):
    times = [int(text) for text in DAYS.strftime(form)]
    with pytest.raises(DataError, match=f"'{times[0]}' .*Write all times as 2018-01-31T12:30:00 or .*--time_unit"):
        read(tmp_path, times, allowed=5, kind=kind)


def test_digits_of_dates_have_bounds():
    assert are_digits_of_dates(np.array([2018013107, 201801310712, 1801310712, 180131071260]))
    for number in (201813010000, 201801320000, 201801012400, 201801010061, 201801010000.5, -2018013107):
        assert not are_digits_of_dates(np.array([number]))
