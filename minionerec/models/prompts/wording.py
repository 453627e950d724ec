"""The wording of prompts: one YAML file, saved with every checkpoint and used unchanged in every stage."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Formatter
from typing import Any

import yaml

from minionerec.core.artefacts import write_text_atomic
from minionerec.core.errors import ConfigError, shown
from minionerec.core.values import read_yaml
from minionerec.data.contexts import OF_TIMES, RequestFeature
from minionerec.data.names import UNKNOWN

SPECIALS = ("bos", "eos")
PROMPT_FIELDS: dict[str, tuple[str, ...]] = {
    "next_sid": ("history",),
    "title_to_sid": ("title",),
    "sid_to_title": ("sid",),
    "description_to_sid": ("description",),
    "next_title": ("history",),
    "title_history_to_sid": ("history_titles",),
    "title_history_to_title": ("history_titles",),
    "sid_to_description": ("sid",),
    "text_to_sid": ("title", "description"),
    "sid_to_text": ("sid",),
    "next_description": ("history",),
}
OTHERWISE = {"history_titles": "closed_titles"}
"""Placeholder → an alternative placeholder: titles that each end with the end token instead of a separator."""
COMPLETION_FIELDS: dict[str, tuple[str, ...]] = {
    "next_sid": ("sid",),
    "title_to_sid": ("sid",),
    "sid_to_title": ("title",),
    "description_to_sid": ("sid",),
    "next_title": ("title",),
    "title_history_to_sid": ("sid",),
    "title_history_to_title": ("title",),
    "sid_to_description": ("description",),
    "text_to_sid": ("sid",),
    "sid_to_text": ("title", "description"),
    "next_description": ("description",),
}
TASKS = tuple(PROMPT_FIELDS)
NEXT_SID, NEXT_TITLE = "next_sid", "title_history_to_title"
"""The tasks that predict the next item, by which a checkpoint recommends."""
BUILT_IN = ("compact", "prose", "lcrec")
LONGEST_DESCRIPTION = "longest_description"
_CONTEXT, _EVENTS = "context", "events"


def event_token(number: int) -> str:
    """The token of an event, by its number from 0.

    Example:
        >>> event_token(2)
        '<event_2>'
    """
    return f"<event_{number}>"


def context_token(name: str, code: int) -> str:
    """The token of a code of a request feature, from 1; of a column, unlike that of any code of an SID.

    Example:
        >>> context_token("gap", 2), context_token("device", 1)
        ('<gap_2>', '<context_device_1>')
    """
    return f"<{name}_{code}>" if name in OF_TIMES else f"<context_{name}_{code}>"


def task_of(tasks: Collection[str]) -> str:
    """The task by which a model recommends, given the tasks that it was trained on.

    Example:
        >>> task_of(["next_sid", "title_history_to_title"]), task_of(["title_history_to_title"])
        ('next_sid', 'title_history_to_title')
    """
    return NEXT_TITLE if NEXT_TITLE in tasks and NEXT_SID not in tasks else NEXT_SID


@dataclass(frozen=True)
class TaskWording:
    """Templates of one task; `{bos}` and `{eos}` stand for the tokenizer's special tokens, or "".

    Attributes:
        prompts: Templates, at least one: training cycles through them, everything else uses the first.
        completion: Template of the completion.
    """

    prompts: tuple[str, ...]
    completion: str

    @property
    def prompt(self) -> str:
        """The first prompt template."""
        return self.prompts[0]

    def content(self) -> dict[str, str | list[str]]:
        """Content of the task in a wording's file."""
        return {"prompt": self.prompt if len(self.prompts) == 1 else [*self.prompts], "completion": self.completion}


@dataclass(frozen=True)
class Wording:
    """Templates of all tasks.

    Attributes:
        name: Short name, shown in reports.
        separator: Text between the SIDs of a history.
        title_separator: Text between the titles of a history.
        tasks: Name of each task → its templates.
        longest_description: Characters to which descriptions are truncated; 0: not truncated.
        context: Request features whose known codes stand as tokens (`context_token`) behind the history from which the
            next item is predicted; empty in a wording without them.
        events: Names of the events that stand behind the SIDs of a history, each as a token (`event_token`); empty in a
            wording without events.
    """

    name: str
    separator: str
    title_separator: str
    tasks: Mapping[str, TaskWording]
    longest_description: int = 0
    context: tuple[RequestFeature, ...] = ()
    events: tuple[str, ...] = ()

    @property
    def tokens(self) -> list[str]:
        """The texts that are tokens of their own beside those of SIDs."""
        return [*(token for tokens in self.context_tokens for token in tokens), *self.event_tokens]

    @property
    def event_tokens(self) -> list[str]:
        """The token of each event."""
        return list(map(event_token, range(len(self.events))))

    @property
    def context_tokens(self) -> list[list[str]]:
        """The tokens of the known codes of each request feature."""
        return [[context_token(of.name, code) for code in range(1, of.size)] for of in self.context]

    def context_text(self, codes: Sequence[int]) -> str:
        """The tokens of codes, one of each request feature; unknown ones have none."""
        pairs = zip(self.context, codes, strict=True)
        return "".join(context_token(feature.name, code) for feature, code in pairs if code != UNKNOWN)

    def task(self, name: str) -> TaskWording:
        """The templates of one task; a `ConfigError` if this wording does not have it."""
        if name not in self.tasks:
            raise ConfigError(f"the wording {self.name!r} has no task {name!r}; it has {', '.join(self.tasks)}.")
        return self.tasks[name]

    def to_yaml(self) -> str:
        """YAML text that `load_wording` reads back."""
        content: dict[str, Any] = {
            "name": self.name,
            "separator": self.separator,
            "title_separator": self.title_separator,
            **({LONGEST_DESCRIPTION: self.longest_description} if self.longest_description else {}),
            **({_CONTEXT: [feature.stored() for feature in self.context]} if self.context else {}),
            **({_EVENTS: list(self.events)} if self.events else {}),
            "tasks": {name: task.content() for name, task in self.tasks.items()},
        }
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the wording as a YAML file."""
        write_text_atomic(path, self.to_yaml())


def _fields(template: str, where: str) -> list[str]:
    if not isinstance(template, str):
        raise ConfigError(f"{where}: is {shown(template)}; expected a text.")
    try:
        parts = [part for part in Formatter().parse(template) if part[1] is not None]
        for _, name, format_, conversion in parts:
            if format_ or conversion:
                raise ValueError(f"{{{name}}} is given a format")
        return [str(name) for _, name, _, _ in parts]
    except ValueError as error:
        raise ConfigError(f"{where}: {error}; write {{{{ and }}}} for plain braces.") from None


def load_wording(name_or_path: str | os.PathLike[str]) -> Wording:
    """Load a built-in wording by name, or one from a YAML file.

    Raises:
        ConfigError: If the name is unknown, a key or placeholder is unknown, or a needed placeholder is missing.
        ArtefactError: If a request feature is damaged.

    Example:
        >>> load_wording("compact").task("next_sid").completion
        '{sid}'
    """
    name = str(name_or_path)
    if name in BUILT_IN:
        content = yaml.safe_load(
            resources.files("minionerec.models.prompts").joinpath(f"wordings/{name}.yaml").read_text("utf-8")
        )
    elif Path(name).is_file():
        content = read_yaml(name)
    else:
        raise ConfigError(f"wording {name!r} is neither a file nor built in; built in are {', '.join(BUILT_IN)}.")
    required = {"name", "separator", "title_separator", "tasks"}
    if set(content) - {LONGEST_DESCRIPTION, _CONTEXT, _EVENTS} != required or not isinstance(content["tasks"], dict):
        raise ConfigError(
            f"{name}: a wording has the keys {', '.join(sorted(required))}; got {', '.join(map(str, content))}."
        )
    for key in sorted(required - {"tasks"}):
        if not isinstance(content[key], str):
            raise ConfigError(f"{name}: {key} is {shown(content[key])}; expected a text.")
    longest = content.get(LONGEST_DESCRIPTION, 0)
    if type(longest) is not int or longest < 0:
        raise ConfigError(f"{name}: {LONGEST_DESCRIPTION} is {shown(longest)}; expected a number of characters.")
    events = content.get(_EVENTS, [])
    if not isinstance(events, list) or not all(isinstance(event, str) for event in events):
        raise ConfigError(f"{name}: {_EVENTS} is {shown(events)}; expected a list of names.")
    features = content.get(_CONTEXT, [])
    if not isinstance(features, list):
        raise ConfigError(f"{name}: {_CONTEXT} is {shown(features)}; expected a list of request features.")
    context = tuple(RequestFeature.read(feature, f"{name}: {_CONTEXT}") for feature in features)
    tasks = {task: _task_wording(name, task, templates) for task, templates in content["tasks"].items()}
    texts = content["name"], content["separator"], content["title_separator"]
    return Wording(*texts, tasks, longest, context, tuple(events))


def _task_wording(name: str, task: str, templates: Any) -> TaskWording:
    """Check and parse one task of a wording's file; raises what `load_wording` does."""
    if task not in TASKS:
        raise ConfigError(f"{name}: unknown task {task!r}; known tasks: {', '.join(TASKS)}.")
    if not isinstance(templates, dict) or set(templates) != {"prompt", "completion"}:
        raise ConfigError(f"{name}: task {task!r} needs exactly the keys prompt and completion.")
    prompts, completion = templates["prompt"], templates["completion"]
    if not isinstance(prompts, list):
        prompts = [prompts]
    if not prompts:
        raise ConfigError(f"{name}: task {task!r}, prompt: is an empty list; write at least one prompt.")
    parts = [("prompt", prompt, PROMPT_FIELDS[task]) for prompt in prompts]
    for part, template, needed in [*parts, ("completion", completion, COMPLETION_FIELDS[task])]:
        fields = _fields(template, f"{name}: task {task!r}, {part}")
        allowed = (*needed, *(OTHERWISE[field] for field in needed if field in OTHERWISE), *SPECIALS)
        for field in fields:
            if field not in allowed:
                raise ConfigError(
                    f"{name}: task {task!r}, {part}: unknown placeholder {{{field}}}; allowed: {', '.join(allowed)}."
                )
        for field in needed:
            if field not in fields and OTHERWISE.get(field) not in fields:
                raise ConfigError(f"{name}: task {task!r}, {part}: the placeholder {{{field}}} is missing.")
    if COMPLETION_FIELDS[task] == ("sid",) and not completion.startswith("{sid}"):
        raise ConfigError(f"{name}: task {task!r}: the completion must begin with {{sid}}, where decoding begins.")
    return TaskWording(tuple(prompts), completion)
