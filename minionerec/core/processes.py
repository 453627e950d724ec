"""The processes of a distributed launch (torchrun, accelerate), with GPUs or without: ranks, sizes, barriers.

The launcher passes them in environment variables, which are read here and nowhere else.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from minionerec.core.errors import PROCESS_ENDED, ConfigError, MinioneRecError, one_line, shown

logger = logging.getLogger(__name__)

# Environment variables of a distributed launcher.
_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PREFIXES = ("ACCELERATE_", "TORCHELASTIC_", "GROUP_", "ROLE_")
_TIMEOUT = timedelta(days=7)


def _number(name: str, default: int) -> int:
    given = os.environ.get(name) or str(default)
    if not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise ConfigError(f"the environment variable {name} is {shown(given)}; launchers set a whole number. Unset it.")
    return int(given)


def process_rank() -> int:
    """Rank of this process in its launch, from 0."""
    return _number("RANK", 0)


def local_rank() -> int:
    """Rank of this process among those of its machine, from 0."""
    return _number("LOCAL_RANK", 0)


def world_size() -> int:
    """Number of processes of this launch."""
    return _number("WORLD_SIZE", 1)


def local_world_size() -> int:
    """Number of processes of this launch on this machine."""
    return _number("LOCAL_WORLD_SIZE", 1)


def is_main_process() -> bool:
    """Whether this is the first process of its launch: the one that writes and logs."""
    return process_rank() == 0


def uses_deepspeed() -> bool:
    """Whether this launch uses DeepSpeed."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false") == "true"


def sharding() -> str:
    """How this launch shards the trainer's state: "ZeRO-N" (DeepSpeed), "FSDP", or "" if it is replicated."""
    if not uses_deepspeed():
        return "FSDP" if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true" else ""
    stage: Any = os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
    try:
        content = json.loads(Path(os.environ["ACCELERATE_DEEPSPEED_CONFIG_FILE"]).read_text(encoding="utf-8"))
        stage = content["zero_optimization"]["stage"]
    except (KeyError, TypeError, OSError, ValueError):  # no file, or one that DeepSpeed reports
        pass
    return f"ZeRO-{stage}"


def check_launcher(mixed_bf16: bool) -> None:
    """Check that the launch's DeepSpeed is installed, and that its mixed precision agrees with the settings.

    Raises:
        ConfigError: If DeepSpeed is not installed, or the precision differs.
    """
    if uses_deepspeed() and find_spec("deepspeed") is None:
        raise ConfigError(
            "this launch uses DeepSpeed, which is not installed. Install it: pip install 'minionerec[gpu]', or launch "
            "without it."
        )
    requested = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if requested not in ("no", "bf16" if mixed_bf16 else "no"):
        raise ConfigError(
            f"this launch requests mixed precision {shown(requested)}, but mixed_bf16 is {str(mixed_bf16).lower()}. "
            "Launch with --mixed_precision no, and give --mixed_bf16 true to compute in bfloat16."
        )


def trainer_processes() -> dict[str, Any]:
    """Arguments of trainers about the processes of a launch; none if there is a GPU.

    Without a GPU, accelerate joins the other processes only with `use_cpu`, with which it does not start DeepSpeed; a
    DeepSpeed launch gets only the backend and finds the CPU by itself.

    Returns:
        `use_cpu` and `ddp_backend`, as `transformers.TrainingArguments` takes them.
    """
    import torch

    if torch.cuda.is_available():
        return {}
    arguments: dict[str, Any] = {"use_cpu": not uses_deepspeed()}
    return arguments | {"ddp_backend": "gloo"} if "LOCAL_RANK" in os.environ else arguments


def join_for_training() -> None:
    """Join the processes of a launch into the group that a trainer will use; nothing with one process."""
    if world_size() > 1:
        from accelerate import PartialState

        arguments = trainer_processes()
        with _joining():
            PartialState(cpu=arguments.get("use_cpu", False), backend=arguments.get("ddp_backend"))


def wait_for_everyone() -> None:
    """Wait until every process of the launch has reached this call; nothing with one process.

    Raises:
        MinioneRecError: If a process has ended instead.
    """
    if world_size() > 1:
        import torch

        if not torch.distributed.is_initialized():
            with _joining():
                torch.distributed.init_process_group("gloo", timeout=_TIMEOUT)
        try:
            torch.distributed.barrier()
        except RuntimeError:  # the connection broke
            raise MinioneRecError(PROCESS_ENDED) from None


@contextmanager
def _joining() -> Iterator[None]:
    """Log the wait for the other processes, which may never arrive, and report errors of joining in one line.

    Raises:
        MinioneRecError: If this process cannot join.
    """
    logger.info("Waiting for all %d processes of this launch (WORLD_SIZE).", world_size())
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise MinioneRecError(
            f"process {process_rank()} cannot join the {world_size()} of its launch ({one_line(error, 300)}). Check "
            "MASTER_ADDR and MASTER_PORT, or unset WORLD_SIZE for a process by itself."
        ) from None


def check_agreement(settings: Mapping[str, Any], inputs: Mapping[str, str]) -> None:
    """Check that all processes of the launch have equal settings and inputs; nothing with one process.

    Args:
        settings: Settings of this process that affect the result.
        inputs: Name → fingerprint of each input.

    Raises:
        ConfigError: In every process, naming the first difference from process 0.
    """
    if world_size() == 1:
        return
    import torch

    from minionerec.core.values import in_words  # for the message alone

    sent: list[Any] = [None] * world_size()
    torch.distributed.all_gather_object(sent, {**settings, **{f"content of {name}": of for name, of in inputs.items()}})
    for rank, other in enumerate(sent):
        for name in {**sent[0], **other}:
            if other.get(name) != sent[0].get(name):
                torch.distributed.destroy_process_group()  # now, since processes end at different times
                raise ConfigError(
                    f"the processes of this launch differ in {name}: {in_words(other.get(name))} in process {rank}, "
                    f"{in_words(sent[0].get(name))} in process 0. Start all with the same settings and inputs."
                )


def environment_of_a_new_launch() -> dict[str, str]:
    """This process's environment without the variables of a distributed launcher, for starting another launch."""
    return {
        name: value for name, value in os.environ.items() if name not in _VARIABLES and not name.startswith(_PREFIXES)
    }
