"""The stages of this part, named by entry points of the group `minionerec.stages`; light to import."""

from minionerec.pipeline.stages import StageSpec

MAKE_CITY = StageSpec(
    "make-city",
    "Generate a shop of any size whose next purchase has a known probability.",
    "minionerec.contrib.city.config:MakeCityConfig",
    "minionerec.contrib.city.make:run_make_city",
)
CITY_CEILING = StageSpec(
    "city-ceiling",
    "Compute the expected metrics of the best possible ranking on examples of a generated city.",
    "minionerec.contrib.city.config:CeilingConfig",
    "minionerec.contrib.city.ceiling:run_city_ceiling",
)
