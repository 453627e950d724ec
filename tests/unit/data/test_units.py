"""Units of times that are numbers: which one a number looks like, and columns in which several meet."""

import numpy as np
import pandas as pd
import pytest
from support.builder import read_tables

from minionerec.core.errors import DataError
from minionerec.data.source import BadRows
from minionerec.data.units import BEYOND, SMALL, date_form, has_form, looks_like, unit_numbers

N = 12
DAYS = pd.date_range("2018-01-31 07:12:44", periods=N, freq="9h")
SECONDS = [int(day.timestamp()) for day in DAYS]


def read(folder, times, allowed=0, kind="csv"):
    """The times that are kept, and how many rows are bad."""
    (folder / "items.csv").write_text("item_id,title\ni,Tea\n")
    table, path, bad = pd.DataFrame({"user_id": "u", "item_id": "i", "timestamp": times}), folder / f"v.{kind}", None
    table.to_csv(path, index=False) if kind == "csv" else table.to_parquet(path)
    bad = BadRows(allowed)
    return read_tables(path, folder / "items.csv", bad).times.tolist(), bad.counts()["bad_rows"]


def test_every_unit_has_the_years_1973_to_2100():
    for unit, ticks in enumerate((1, 10**3, 10**6, 10**9)):
        years = np.array([1974, 2018, 2099]) - 1970
        assert unit_numbers(years * 365.25 * 86_400 * ticks).tolist() == [unit] * 3
    assert unit_numbers(np.array([-1, 0, 17_500, 20_180_131])).tolist() == [SMALL] * 4
    assert unit_numbers(np.array([9_999_999_999, 20_180_131_071_244])).tolist() == [BEYOND] * 2


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("number", "what"),
    [
        (0, "no time since 1973"),
        (-1, "no time since 1973"),
        (17_562, "days since 1970"),
        (421_502, "hours since 1970"),
        (25_290_185, "minutes since 1970"),
        (9_999_999_999, "a time after 2100"),
        (20_180_131, "a date written as yyyymmdd"),
        (20_180_131_071_244, "a date written as yyyymmddHHMMSS"),
        (1_517_382_764_000, "milliseconds since 1970"),
    ],
)
def test_a_number_of_another_unit_among_seconds_is_a_bad_row(tmp_path, number, what, kind):
    times = [*SECONDS[:4], number, *SECONDS[4:]]
    folder = "line 6" if kind == "csv" else "row 5"
    reported = (
        f"{folder}, column 'timestamp': '{number}' looks like {what}, but most rows like seconds \\(1 such rows\\)"
    )
    with pytest.raises(DataError, match=reported):
        read(tmp_path, times, kind=kind)
    assert read(tmp_path, times, allowed=1, kind=kind) == (SECONDS, 1)


def test_every_second_row_in_days_is_an_error(tmp_path):
    times = [time // 86_400 if position % 2 else time for position, time in enumerate(SECONDS)]
    with pytest.raises(DataError, match=r"line 3, .* looks like days since 1970, .* \(6 such rows\)"):
        read(tmp_path, times)


def test_numbers_too_small_to_tell_stay_and_a_single_timestamp_among_them_is_strange(tmp_path):
    order = list(range(N))
    assert read(tmp_path, order) == (order, 0)
    with pytest.raises(DataError, match="looks like seconds since 1970, but most rows like numbers too small to tell"):
        read(tmp_path, [*order, SECONDS[0]])


def test_times_that_run_on_through_1973_are_of_one_unit(tmp_path):
    times = [90_000_000 + 3_000_000 * position for position in range(N)]
    assert read(tmp_path, times) == (times, 0)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    "form",
    [
        ("yyyymmddHH", "%Y%m%d%H"),
        ("yyyymmddHHMM", "%Y%m%d%H%M"),
        ("yyyymmddHHMMSS", "%Y%m%d%H%M%S"),
        ("yymmddHHMM", "%y%m%d%H%M"),
        ("yymmddHHMMSS", "%y%m%d%H%M%S"),
    ],
    ids=lambda form: form[0],
)
def test_digits_of_dates_are_never_taken_for_a_unit(tmp_path, form, kind):
    times = [int(text) for text in DAYS.strftime(form[1])]
    reported = (
        f"'{times[0]}' looks like a date written as {form[0]}, as most rows do. Write dates as 2018-01-31T12:30:00"
    )
    for allowed in (0, 5):
        with pytest.raises(DataError, match=reported):
            read(tmp_path, times, allowed=allowed, kind=kind)


def test_numbers_after_2100_in_every_unit_are_an_error(tmp_path):
    with pytest.raises(DataError, match=r"line 2, .* looks like a time after 2100 in seconds, milli-, micro- and nano"):
        read(tmp_path, [int(text) * 1000 for text in DAYS.strftime("%Y%m%d%H%M%S")])


def test_seconds_that_have_the_digits_of_a_date_by_accident_are_seconds(tmp_path):
    times = [1_801_011_230, 1_801_011_230, 1_801_011_231]
    assert read(tmp_path, times) == (times, 0)
    assert read(tmp_path, [*times, 1_801_011_299]) == ([*times, 1_801_011_299], 0)


def test_forms_of_dates_have_bounds():
    assert has_form(np.array([201813010000, 201801320000, 201801012400, 201801010060]), "yyyymmddHHMM").sum() == 0
    assert date_form(np.array([201801010000.5, 201801010000])) is None
    assert date_form(np.array([], dtype=np.int64)) is None
    assert looks_like(1_500_000_000) == "seconds since 1970"
