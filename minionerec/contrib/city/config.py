"""Settings of the stages that make the city and its ceiling."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from minionerec.contrib.city.sizes import DAY, DEPARTMENT, FORMS, MOST_TIMES, RETURNS, SHELF, SHOP, seconds_a_choice
from minionerec.data.names import SPLITS
from minionerec.pipeline.settings import StageConfig, setting


@dataclass
class MakeCityConfig(StageConfig):
    """Settings of `run_make_city`."""

    kind: ClassVar[str] = "city"

    output: str = setting(
        "runs/city/small/city",
        "directory to write the tables of items and interactions into",
        required=True,
        affects_result=False,
    )
    items: int = setting(600, "number of items, a multiple of 20 (a shelf holds 20)", least=40, most=1_000_000_000)
    users: int = setting(2000, "number of users", least=1)
    mean_interactions: int = setting(
        20, "purchases per user, on average; single users make from 2 to eight times as many", least=2, most=10_000
    )
    days: int = setting(360, "days that the city is open", least=1, most=36_500)
    epoch_days: int = setting(60, "days after which every shelf has another best seller", least=1, most=36_500)
    returns: float = setting(RETURNS, "share of a user's purchases that begin a session", above=0, most=1)
    late: float = setting(
        0.0,
        "share of the items, among those that become best sellers while the city is open, that are not sold before",
        least=0,
        most=1,
    )
    memory: int = setting(0, "latest items of a user that are not bought again, at most 10", least=0, most=10)
    form: str = setting(
        FORMS[0],
        f"'parquet': two tables of parquet; '{SHOP}': csv files with ids such as P001 and U0001, for one small shop",
        known=FORMS,
    )
    columns: bool = setting(
        False,
        "whether interactions have an event (view, cart, purchase) and a device, and items a brand, a category and a "
        "price; purchases depend on the price, the brand and the weekday, and memory is 0",
    )
    price_factor: float = setting(
        4.0, "columns: factor of the weight of items in a user's price band", least=1, most=20, requires="columns"
    )
    brand_factor: float = setting(
        8.0, "columns: factor of the weight of a user's favourite brands", least=1, most=20, requires="columns"
    )
    weekend_factor: float = setting(
        5.0, "columns: factor of the weight of leisure shelves at weekends", least=1, most=20, requires="columns"
    )
    seed: int = setting(42, "random seed", least=0)
    processes: int = setting(
        1, "processes that generate users; the result does not depend on them", least=1, affects_result=False
    )

    def contradictions(self) -> Iterator[str]:
        """See `Settings.contradictions`."""
        yield from super().contradictions()
        if self.items % SHELF:
            less = self.items - self.items % SHELF
            yield (
                f"items is {self.items}, but a shelf holds {SHELF}. Give a multiple of {SHELF}: {less} or "
                f"{less + SHELF}."
            )
        if self.form == SHOP and self.items > DEPARTMENT * SHELF:
            yield (
                f"items is {self.items}, but a shop has one department of at most {DEPARTMENT * SHELF}. Give fewer "
                "items, or form 'parquet'."
            )
        if self.columns and self.memory:
            yield (
                f"memory is {self.memory}, but a city with columns has none: what a user does not buy again would tell "
                "of a history what a ceiling without columns may not know. Leave memory out."
            )
        most = MOST_TIMES * self.mean_interactions
        needed = -(-most * seconds_a_choice(self.returns) // DAY)
        if self.days < needed:
            yield (
                f"days is {self.days}, but with mean_interactions {self.mean_interactions} a user may make {most} "
                f"purchases, which take {needed} days. Give more days, or fewer mean_interactions."
            )


@dataclass
class CeilingConfig(StageConfig):
    """Settings of `run_city_ceiling`."""

    kind: ClassVar[str] = "ceiling"

    city: str = setting(
        "runs/city/small/city", "directory of the city (minionerec make-city)", required=True, input_kind="city"
    )
    corpus: str = setting(
        "runs/city/small/corpus",
        "corpus made of all of it (minionerec prepare-data)",
        required=True,
        input_kind="corpus",
    )
    output: str = setting(
        "runs/city/small/ceiling",
        "directory to write ceiling.json and rows.parquet into",
        required=True,
        affects_result=False,
    )
    split: str = setting("test", "split whose ceiling is computed", known=SPLITS)
    ks: list[int] = setting([1, 3, 5, 10, 20, 50], "cutoffs of the metrics", required=True, least=1)
