"""Settings of the stages that make the city and its ceiling."""

from dataclasses import dataclass
from typing import ClassVar

from minionerec.core.errors import ConfigError
from minionerec.core.settings import StageConfig, setting
from minionerec.data.city.sizes import DAY, MOST_TIMES, SECONDS_A_CHOICE, SHELF
from minionerec.data.names import SPLITS


@dataclass
class MakeCityConfig(StageConfig):
    """Settings of `run_make_city`."""

    kind: ClassVar[str] = "city"

    output: str = setting(
        "runs/city/small/city",
        "directory to write items.parquet and interactions.parquet into",
        required=True,
        decides=False,
    )
    items: int = setting(600, "items of the city, a multiple of 20 (a shelf holds 20)", least=40, most=1_000_000_000)
    users: int = setting(2000, "people of the city", least=1)
    mean_interactions: int = setting(
        20, "choices of a person, on average; from 2 to eight times as many come about", least=2, most=10_000
    )
    days: int = setting(360, "days that the city is open", least=1, most=36_500)
    epoch_days: int = setting(60, "days after which every shelf has another best seller", least=1, most=36_500)
    seed: int = setting(42, "seed of all that is drawn", least=0)
    processes: int = setting(1, "processes that make blocks of people; the result is the same", least=1, decides=False)

    def __post_init__(self) -> None:
        """Check the settings alone and against one another.

        Raises:
            ConfigError: Naming the settings, their values and the remedy.
        """
        super().__post_init__()
        if self.items % SHELF:
            less = self.items - self.items % SHELF
            raise ConfigError(
                f"items is {self.items}, but a shelf holds {SHELF}. Give a multiple of {SHELF}: {less} or "
                f"{less + SHELF}."
            )
        most = MOST_TIMES * self.mean_interactions
        needed = -(-most * SECONDS_A_CHOICE // DAY)
        if self.days < needed:
            raise ConfigError(
                f"days is {self.days}, but with mean_interactions {self.mean_interactions} a person may choose {most} "
                f"times, which takes {needed} days. Give more days, or fewer mean_interactions."
            )


@dataclass
class CeilingConfig(StageConfig):
    """Settings of `run_city_ceiling`."""

    kind: ClassVar[str] = "ceiling"

    city: str = setting(
        "runs/city/small/city", "directory of the city (minionerec make-city)", required=True, reads="city"
    )
    corpus: str = setting(
        "runs/city/small/corpus", "corpus made of all of it (minionerec prepare-data)", required=True, reads="corpus"
    )
    output: str = setting(
        "runs/city/small/ceiling", "directory to write ceiling.json and rows.parquet into", required=True, decides=False
    )
    split: str = setting("test", "rows whose ceiling is computed", known=SPLITS)
    ks: list[int] = setting([1, 3, 5, 10, 20, 50], "cut-offs of the metrics", required=True, least=1)
