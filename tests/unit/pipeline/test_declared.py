"""Every setting of every stage refuses what its declaration excludes, in one line that names it and the remedy."""

import typing
from dataclasses import MISSING, fields

import pytest

from minionerec.core.errors import ConfigError
from minionerec.core.values import without_none
from minionerec.pipeline.settings import Settings, description, typed_values
from minionerec.pipeline.stages import STAGES
from minionerec.serve.config import ServeConfig

CONFIGS = {**{name: spec.config_class() for name, spec in STAGES.items()}, "serve": ServeConfig}
LEAST = {
    "prepare-data": {"source": "demo"},
    "sid-report": {"tables": {"a": "sids"}},
    "calc-level": {"predictions": "predictions"},
    "report": {"predictions": {"a": "predictions"}, "corpus": "corpus"},
    "preference-report": {"runs": {"a": "run"}},
    "eval-beam": {"checkpoint": "checkpoint"},
    "recommend": {"checkpoint": "checkpoint"},
}
"""What a stage cannot do without, beside texts that must not be empty."""


def least(name: str) -> dict[str, typing.Any]:
    """The fewest settings that a stage takes."""
    texts = [each.name for each in fields(CONFIGS[name]) if description(each).required and each.default == ""]
    return dict.fromkeys(texts, "given") | LEAST.get(name, {})


def beside(config: type[Settings], owner: str) -> dict[str, typing.Any]:
    """A setting with a value that is not its default, so that those that belong to it may be given."""
    if not owner:
        return {}
    (of,) = (each for each in fields(config) if each.name == owner)
    if described := description(of).known:
        return {owner: next(word for word in described if word != of.default)}
    return {owner: True if of.default is False else "given"}


def in_its_form(hint: typing.Any, known: tuple[typing.Any, ...], value: typing.Any) -> typing.Any:
    """A value as an entry of a list or mapping where the setting is one."""
    kind = typing.get_origin(without_none(hint))
    return [value] if kind is list else {known[0] if known else "a": value} if kind is dict else value


def excluded(config: type[Settings]) -> typing.Iterator[tuple[str, typing.Any, str]]:
    """Of every setting: its name, a value that its declaration excludes, and what must be said of it."""
    hints = typing.get_type_hints(config)
    for each in fields(config):
        reported, hint = description(each), hints[each.name]
        step = 1 if "int" in str(hint) else 0.5
        low = (
            f"at least {reported.least:g}"
            if reported.least is not None
            else f"above {reported.above:g}"
            if reported.above is not None
            else ""
        )
        high = (
            f"at most {reported.most:g}"
            if reported.most is not None
            else f"below {reported.below:g}"
            if reported.below is not None
            else ""
        )
        words = "; it must be " + " and ".join(filter(None, (low, high))) + "."
        for bound, beyond in ((reported.least, -step), (reported.above, 0), (reported.most, step), (reported.below, 0)):
            if bound is not None:
                yield each.name, in_its_form(hint, reported.known, bound + beyond), words
        if reported.known:
            unknown = "no-such" if isinstance(reported.known[0], str) else 10**6
            kind = typing.get_origin(without_none(hint))
            value = {unknown: 1.0} if kind is dict else in_its_form(hint, (), unknown)
            yield each.name, value, f"unknown {each.name} {unknown!r}; known: "
        if reported.required:
            kind = typing.get_origin(without_none(hint)) or without_none(hint)
            yield each.name, kind(), f"{each.name} is empty; give --{each.name}: {reported.help}."


@pytest.mark.parametrize("name", CONFIGS)
def test_what_a_declaration_excludes_is_refused(name):
    config = CONFIGS[name]
    config(**least(name))
    for setting, value, words in excluded(config):
        owner = description(next(each for each in fields(config) if each.name == setting)).requires
        with pytest.raises(ConfigError) as error:
            config(**{**least(name), **beside(config, owner), setting: value})
        message = str(error.value)
        assert setting in message and words in message and "\n" not in message, (setting, value, message)


@pytest.mark.parametrize("name", CONFIGS)
def test_values_of_another_type_are_refused(name):
    hints = typing.get_type_hints(CONFIGS[name])
    for each in fields(CONFIGS[name]):
        hint = str(hints[each.name])
        wrong = [[[1]], {"a": {"b": 1}}] if "Any" not in hint else []
        wrong += [float("nan"), True] if "int" in hint or "float" in hint else []
        for value in wrong:
            with pytest.raises(ConfigError) as error:
                typed_values(CONFIGS[name], {each.name: value}, "file.yaml")
            assert str(error.value).startswith(f"file.yaml: {each.name}"), (each.name, value, str(error.value))
            assert "expected" in str(error.value)


def test_every_number_has_bounds():
    free = {"codebook_sizes", "ks", "rewards", "lift"}  # checked by their stages; any sign means something for lift
    for config in CONFIGS.values():
        hints = typing.get_type_hints(config)
        for each in fields(config):
            reported = description(each)
            if "int" in str(hints[each.name]) or "float" in str(hints[each.name]):
                bound = reported.least is not None or reported.above is not None or reported.known
                assert bound or each.name in free, f"{config.__name__}.{each.name} has no bound"


def test_a_stage_that_runs_with_each_seed_has_the_setting():
    configs = [spec.config_class() for spec in STAGES.values() if spec.seeds == "each"]
    assert len(configs) > 3 and all("seed" in {each.name for each in fields(config)} for config in configs)


def test_a_setting_belongs_to_one_that_there_is():
    for name, config in CONFIGS.items():
        names = {each.name for each in fields(config)}
        for each in fields(config):
            assert description(each).requires in {"", *names - {each.name}}, f"{name}: {each.name}"
            assert each.default is not MISSING or each.default_factory is not MISSING


@pytest.mark.parametrize(
    "name", [name for name, config in CONFIGS.items() if any(description(each).requires for each in fields(config))]
)
def test_what_belongs_to_a_setting_that_is_not_given_is_refused(name):
    for each in fields(CONFIGS[name]):
        if not (owner := description(each).requires):
            continue
        if isinstance(each.default, int | float):
            value = not each.default if isinstance(each.default, bool) else each.default + 1
        else:
            value = next((word for word in description(each).known if word != each.default), "given")
        with pytest.raises(
            ConfigError, match=rf"^{each.name} is .*, but {owner} is .*; give --{owner}.*, or leave it out"
        ):
            CONFIGS[name](**{**least(name), each.name: value})
