"""Trainings as text: settings with batch arithmetic, outcomes, and the cost of a recommender."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minionerec.core.artefacts import fingerprint
from minionerec.core.records import duration
from minionerec.reports.cells import shown_setting
from minionerec.reports.lineage import CATALOGUE, DPO, RL, SEQUENTIAL, SFT, Lineage, Training

Value = str | int | float
NOT_RECORDED = "not recorded"
_FITTED = "as memory allows"
TITLES = {SFT: "SFT", DPO: "S-DPO", RL: "RL (GRPO)", CATALOGUE: "catalogue model", SEQUENTIAL: "sequential model"}
SettingLines = list[tuple[str, str]]


def parameters(training: Training) -> SettingLines:
    """The main settings of a training, as (name, value)."""
    return _PARAMETERS.get(training.stage, _all_settings)(training)


def _sft(training: Training) -> SettingLines:
    s = training.settings
    lines = [
        ("Base model", backbone(training)),
        ("Global batch", f"{shown_setting(s.get('batch_size'))} examples per step"),
        ("Micro batch", _micro_batch(s.get("device_batch_size"))),
        ("Gradient accumulation", _accumulation(training, s.get("batch_size"), s.get("device_batch_size"))),
        *_rates(training),
        ("Truncation", f"prompts keep their last {shown_setting(s.get('max_prompt_length'))} tokens"),
        ("Tasks", shown_setting(s.get("tasks"))),
        ("Best checkpoint by", shown_setting(s.get("select_by"))),
    ]
    if "teacher" in training.before:
        lines.append(("Distillation, share of the loss", shown_setting(s.get("teacher_share"))))
    if s.get("lora_rank"):
        lines.append(("LoRA rank", shown_setting(s["lora_rank"])))
    return lines


def _rl(training: Training) -> SettingLines:
    s = training.settings
    prompts, group, device = s.get("prompts_per_step"), s.get("generations"), s.get("prompts_per_device")
    sampled = "1, without replacement" if s.get("rollouts") == "sampling" else "none: the best beams, no sampling"
    sync = "no"
    if s.get("sync_reference"):
        sync = f"every {shown_setting(s.get('sync_steps'))} steps, {shown_setting(s.get('sync_share'))} of the policy"
    return [
        ("Per-device batch", _FITTED if device == 0 else _completions(device, group)),
        ("Gradient accumulation", _accumulation(training, prompts, device)),
        ("Effective batch", _completions(prompts, group)),
        *_rates(training),
        ("Generations per prompt", shown_setting(group)),
        ("Beta (KL penalty)", shown_setting(s.get("beta"))),
        ("Temperature", sampled),
        ("Reward", shown_setting(s.get("rewards"))),
        ("Rollouts", shown_setting(s.get("rollouts"))),
        ("Loss", shown_setting(s.get("loss"))),
        ("Reference follows the policy", sync if s.get("beta") else "no reference"),
        ("Processes", _processes(training)),
    ]


def _completions(prompts: Any, group: Any) -> str:
    return f"{_times(prompts, group)} completions ({shown_setting(prompts)} prompts x {group})"


def _times(count: Any, by: Any) -> str:
    return shown_setting(count * by) if isinstance(count, int) and isinstance(by, int) else NOT_RECORDED


def _catalogue(training: Training) -> SettingLines:
    s = training.settings
    shape = f"{counted(s.get('towers'), 'tower')} of {counted(s.get('layers'), 'layer')}, hidden size "
    lines = [
        ("Model", f"{shape}{shown_setting(s.get('hidden_size'))}{_size(training)}"),
        ("Objective", shown_setting(s.get("objective"))),
        ("Global batch", f"{shown_setting(s.get('batch_size'))} windows per step"),
        ("Gradient accumulation", _accumulation(training, s.get("batch_size"), s.get("device_batch_size"))),
        *_rates(training),
        ("Dropout, weight decay", f"{shown_setting(s.get('dropout'))}, {shown_setting(s.get('weight_decay'))}"),
        ("Item vectors", shown_setting(s.get("vectors"))),
        ("Weight of newer examples", shown_setting(s.get("recency"))),
    ]
    if s.get("objective") not in (None, "likelihood"):
        lines += [("Generations", shown_setting(s.get("generations"))), ("Beta", shown_setting(s.get("beta")))]
    return lines


def _sequential(training: Training) -> SettingLines:
    s = training.settings
    stop = s.get("stop_after")
    return [
        ("Model", f"{shown_setting(s.get('model'))}{_size(training)}"),
        ("Hyper-parameters", shown_hyper(s.get("hyper"))),
        ("Global batch", f"{shown_setting(s.get('batch_size'))} examples per step"),
        ("Learning rate", f"{shown_setting(s.get('learning_rate'))} (constant)"),
        (
            "Maximum epochs",
            shown_setting(s.get("epochs")) + (f" (early stopping after {stop} epochs)" if stop else ""),
        ),
        ("Longest history", shown_setting(s.get("max_len"))),
        ("Best epoch by", shown_setting(s.get("monitor"))),
    ]


def shown_hyper(hyper: Any) -> str:
    """Hyper-parameters as "name = value"; "defaults of the model" where none was changed."""
    if not isinstance(hyper, Mapping) or not hyper:
        return "defaults of the model"
    return ", ".join(f"{name} = {shown_setting(value)}" for name, value in hyper.items())


def _all_settings(training: Training) -> SettingLines:
    return [(name, shown_setting(value)) for name, value in training.settings.items()]


_PARAMETERS: dict[str, Callable[[Training], SettingLines]] = {
    SFT: _sft,
    RL: _rl,
    CATALOGUE: _catalogue,
    SEQUENTIAL: _sequential,
}


def _rates(training: Training) -> SettingLines:
    s = training.settings
    warmup = s.get("warmup") or 0
    warm = "" if not warmup else f", warm-up {shown_setting(warmup)} {'of all steps' if warmup < 1 else 'steps'}"
    patience = f"early stopping after {s['patience']} validations" if s.get("patience") else "no early stopping"
    return [
        ("Learning rate", f"{shown_setting(s.get('learning_rate'))} ({shown_setting(s.get('schedule'))}{warm})"),
        ("Maximum epochs", f"{shown_setting(s.get('epochs'))} ({patience})"),
    ]


def _micro_batch(device: Any) -> str:
    return _FITTED if device == 0 else f"{shown_setting(device)} examples per device"


def _accumulation(training: Training, total: Any, device: Any) -> str:
    """Micro batches per device and step, with the arithmetic, e.g. "16 (1,024 / 16 / 4 processes)"."""
    if device == 0:
        return _FITTED
    if not isinstance(total, int) or not isinstance(device, int):
        return NOT_RECORDED
    processes = (training.record or {}).get("processes")
    if not isinstance(processes, int) or processes < 1:
        return f"{NOT_RECORDED} ({total:,} / {device:,} / processes)"
    noun = "process" if processes == 1 else "processes"
    return f"{total // (device * processes):,} ({total:,} / {device:,} / {processes} {noun})"


def _processes(training: Training) -> str:
    found = (training.record or {}).get("processes")
    return NOT_RECORDED if found is None else f"{found:,}"


def _size(training: Training) -> str:
    count = training.counts.get("parameters")
    return f", {count:,} parameters" if isinstance(count, int) else ""


def backbone(training: Training) -> str:
    """The base model of an SFT."""
    s = training.settings
    if s.get("model") != "scratch":
        return f"{shown_setting(s.get('model'))}{_size(training)}"
    return f"from scratch: {counted(s.get('layers'), 'layer')}, hidden size {s.get('hidden_size')}{_size(training)}"


def outcome(training: Training) -> SettingLines:
    """The outcome of a training, as (name, value): last step, best validation, losses, time and machine."""
    if training.progress is not None:
        done, of = training.progress
        where = f"step {done:,} of {of:,}" if done is not None and of is not None else "no checkpoint yet"
        return [("Status", f"in progress, {where}"), ("Results", "pending")]
    lines = [*_stopped(training), *_best(training)]
    losses = [row for row in training.log if isinstance(row.get("loss"), float)]
    if losses:
        lines.append(("Last training loss", f"{losses[-1]['loss']:.4g}"))
    if training.seed is not None:
        lines.append(("Seed", str(training.seed)))
    return [*lines, *recorded(training.record)]


def _stopped(training: Training) -> SettingLines:
    """The last step and epoch, and whether training stopped early."""
    steps, epochs, reached = training.counts.get("steps"), training.settings.get("epochs"), epochs_of(training)
    lines = [("Steps", f"{steps:,}")] if isinstance(steps, int) else []
    if isinstance(reached, int | float) and isinstance(epochs, int | float):
        limit = training.settings.get("max_steps", -1)
        early = " (stopped early)" if limit < 1 else f" (stopped by max_steps = {limit:,})"
        early = early if reached < epochs - 1e-6 else ""
        lines.append(("Epochs", f"{reached:.4g} of {shown_setting(epochs)}{early}"))
    return lines


def epochs_of(training: Training) -> Any:
    """The number of epochs trained, from the log or manifest; None if unknown."""
    reached = max((row["epoch"] for row in training.log if isinstance(row.get("epoch"), int | float)), default=None)
    return training.counts.get("epochs", reached) if training.stage == SEQUENTIAL else reached


_MEASURES: dict[str, dict[str, tuple[str, ...]]] = {
    "loss": {"training": ("loss",), "validation": ("eval_loss",)},
    "reward": {"training": ("reward",)},
    "NDCG@10": {"validation": ("eval_ndcg@10", "NDCG@10")},
}
"""Measure → its series → their keys in the training logs of language models and of sequential models."""


def learning_points(training: Training) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Measure → series → (epoch, value) of a training, of those with two points or more."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for measure, series in _MEASURES.items():
        for name, keys in series.items():
            points = [(row["epoch"], row[key]) for row in training.log for key in keys if {key, "epoch"} <= row.keys()]
            if len(points) > 1:
                found.setdefault(measure, {})[name] = points
    return found


def _best(training: Training) -> SettingLines:
    """The best validation, and the lowest validation loss."""
    lines: SettingLines = []
    best, step = training.counts.get("best"), training.counts.get("best_step")
    validations = [row for row in training.log if isinstance(row.get("eval_loss"), float)]
    if validations:
        lowest = min(validations, key=lambda row: row["eval_loss"])
        lines.append(("Lowest validation loss", f"{lowest['eval_loss']:.4f} at epoch {lowest.get('epoch', 0):.4g}"))
    if isinstance(best, Mapping):
        values = ", ".join(f"{name.removeprefix('eval_').upper()} {value:.4f}" for name, value in _ranked(best))
        at = next((row.get("epoch") for row in training.log if row.get("step") == step), None)
        where = f"step {shown_setting(step)}" + ("" if at is None else f", epoch {at:.4g}")
        start = " (the initial checkpoint)" if step == 0 else ""
        lines.append(("Best validation", f"{values or 'no ranking metric'} at {where}{start}"))
    if "best_epoch" in training.counts:
        lines.append(("Best validation", f"epoch {training.counts['best_epoch']}, counted from 0"))
    return lines


def _ranked(best: Mapping[str, Any]) -> Sequence[tuple[str, float]]:
    return [(name, value) for name, value in best.items() if "@" in name and isinstance(value, float)]


def recorded(record: Mapping[str, Any] | None) -> SettingLines:
    """Time, machine, memory and commit of a run record."""
    if record is None:
        return [("Duration", NOT_RECORDED), ("Machine", NOT_RECORDED)]
    seconds = dict(record["seconds"])
    phases = ", ".join(f"{name} {duration(value)}" for name, value in seconds.items() if name != "all")
    parts = record.get("parts", 1)
    lines = [
        ("Duration", duration(seconds["all"]) + (f" ({phases})" if phases else "")),
        ("Started", f"{record['started']}" + (f", in {parts} parts" if parts > 1 else "")),
        ("Machine", machine(record["machine"])),
    ]
    for key, name in (("peak_memory_bytes", "Peak memory"), ("peak_gpu_memory_bytes", "Peak GPU memory")):
        if record.get(key):
            lines.append((name, f"{record[key] / 2**30:.1f} GiB"))
    if record.get("commit"):
        lines.append(("Commit", str(record["commit"])))
    return lines


def machine(found: Mapping[str, Any]) -> str:
    """Processor, cores and GPUs as text."""
    cards = [str(card["name"]) for card in found.get("gpus", ())]
    words = [f"{cards.count(name)} x {name}" for name in dict.fromkeys(cards)]
    computing = f"{counted(found['cores'], 'core')}, {counted(found['threads'], 'thread')}"
    return "; ".join([*words, f"{found['processor']}, {computing}"])


def counted(count: Any, noun: str) -> str:
    """A count with its noun, e.g. "1 layer", "2 layers"."""
    return f"{shown_setting(count)} {noun}{'' if count == 1 else 's'}"


def our_settings(trainings: Sequence[Training]) -> dict[str, Value]:
    """The settings that published figures are compared by, from the trainings of a stage."""
    found: dict[str, Value] = {}
    for training in trainings:
        s = training.settings
        if training.stage == RL:
            group, prompts = s.get("generations"), s.get("prompts_per_step")
            found |= {"rl_epochs": s.get("epochs", ""), "rl_learning_rate": s.get("learning_rate", "")}
            found |= {"rl_generations": group or "", "rl_beta": s.get("beta", "")}
            found |= {"rl_batch": _times(prompts, group), "rl_reward": shown_setting(s.get("rewards"))}
        else:
            names = ("epochs", "learning_rate", "schedule", "batch_size")
            found |= {name.removesuffix("_size"): s[name] for name in names if name in s}
            if training.stage == SEQUENTIAL:
                found["schedule"] = "constant"
            found["backbone"] = _method(training)
    return found


def _method(training: Training) -> str:
    if training.stage == SFT:
        name = str(training.settings.get("model"))
        return backbone(training) if name == "scratch" else name.rpartition("/")[2]
    if training.stage == SEQUENTIAL:
        return f"{shown_setting(training.settings.get('model'))}{_size(training)}"
    return f"{TITLES.get(training.stage, training.stage)}{_size(training)}"


_USUAL = {
    "scores": "full",
    "seen": "keep",
    "share": None,
    "combine": None,
    "assistant_temperature": 1.0,
    "length_penalty": 0.0,
    "text_beams": None,
    "encoder": None,
    "weights": None,
}
"""Settings of the search → the value at which they are not shown."""


@dataclass(frozen=True)
class Effort:
    """All runs of one recommender.

    Attributes:
        runs: The lineage of each seed's predictions.
        list_length: List length; None where the whole catalogue was ranked.
        counted: Parameters recorded with the predictions; None if unknown.
    """

    runs: Sequence[Lineage]
    list_length: int | None
    counted: int | None

    @property
    def seeds(self) -> list[int]:
        """The seeds of the trainings that the predictions are of, where known."""
        return [run.own.seed for run in self.runs if run.own is not None and run.own.seed is not None]

    @property
    def single(self) -> bool:
        """Whether it was trained with a single seed."""
        return len(self.runs) == 1 and bool(self.runs[0].trainings or self.runs[0].missing)

    @property
    def parameters(self) -> int | None:
        """Parameters of all models used in a query; None if unknown."""
        inputs = {record["sha256"] for record in (self.runs[0].predictions or {}).get("inputs", {}).values()}
        models = [training for training in self.runs[0].trainings if fingerprint(training.path) in inputs]
        counts = [model.counts.get("parameters") for model in models]
        known = [count for count in counts if isinstance(count, int)]
        return sum(known) if known and len(known) == len(counts) else self.counted

    @property
    def examples(self) -> tuple[int, float] | None:
        """Training examples (or windows) per epoch and epochs trained, of the first seed; None if unknown."""
        own = self.runs[0].own
        if own is None:
            return None
        rows, epochs = _rows(own.counts), epochs_of(own)
        epochs = own.settings.get("epochs") if epochs is None else epochs
        return (rows, float(epochs)) if rows and isinstance(epochs, int | float) else None

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the first run's training, except the seed; empty if unknown."""
        return _without_seed(self.runs[0])

    @property
    def unlike(self) -> dict[str, list[Any]]:
        """Settings in which the runs' own trainings differ, except the seed, with the value of each run."""
        known = [_without_seed(run) for run in self.runs if run.own is not None]
        names = dict.fromkeys(name for settings in known for name in settings)
        values = {name: [settings.get(name) for settings in known] for name in names}
        return {name: each for name, each in values.items() if any(value != each[0] for value in each)}

    @property
    def parts(self) -> list[tuple[str, float | None]]:
        """The trainings of the first seed by kind, in order, each with its seconds."""
        return [(TITLES.get(each.stage, each.path.name), _seconds(each.record)) for each in self.runs[0].trainings]

    @property
    def seconds(self) -> float | None:
        """Seconds of all trainings of a seed, the mean over seeds; None if one is not recorded."""
        each = [[_seconds(training.record) for training in run.trainings] for run in self.runs]
        return _mean([None if run.missing else _sum(parts) for run, parts in zip(self.runs, each, strict=True)])

    @property
    def evaluation_seconds(self) -> float | None:
        """Seconds of recommending and measuring, the mean over seeds; None if one is not recorded."""
        return _mean([_seconds(run.record) for run in self.runs])

    @property
    def machines(self) -> list[str]:
        """The machines on which the seconds were measured."""
        records = [each for run in self.runs for each in (run.record, *(training.record for training in run.trainings))]
        return list(dict.fromkeys(machine(record["machine"]) for record in records if record))

    @property
    def commits(self) -> list[str]:
        """The commits of the code that trained, where recorded."""
        records = [training.record for run in self.runs for training in run.trainings]
        return list(dict.fromkeys(record["commit"] for record in records if record and record.get("commit")))

    @property
    def search(self) -> str:
        """The search settings as text."""
        settings = (self.runs[0].predictions or {}).get("settings") or {}
        ranked = "whole catalogue" if self.list_length is None else f"{self.list_length} candidates"
        words = [f"{settings['search']}, {self.list_length} beams" if settings.get("search") else ranked]
        words += [
            f"{name} {shown_setting(settings[name])}"
            for name, usual in _USUAL.items()
            if name in settings and settings[name] != usual
        ]
        return "; ".join(words)


def _without_seed(run: Lineage) -> dict[str, Any]:
    """The settings of the training that the predictions are of, except seed and output."""
    settings = {} if run.own is None else run.own.settings
    return {name: value for name, value in settings.items() if name not in ("seed", "output")}


def _rows(counts: Mapping[str, Any]) -> int | None:
    names = ("train",) if counts.get("recipe") == "one position a row" else ("rows", "windows")
    found = next((counts[name] for name in names if name in counts), None)
    if isinstance(found, Mapping):
        found = sum(value for value in found.values() if isinstance(value, int))
    return found if isinstance(found, int) else None


def _seconds(record: Mapping[str, Any] | None) -> float | None:
    return None if record is None else float(record["seconds"]["all"])


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    total = _sum(values)
    return None if total is None else total / len(values)
