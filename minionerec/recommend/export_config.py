"""Settings of `minionerec export`; light to import, so that `--help` answers at once."""

from dataclasses import dataclass
from typing import ClassVar

from minionerec.core.settings import StageConfig, setting

DTYPES = ("saved", "float32", "bfloat16", "float16")


@dataclass
class ExportConfig(StageConfig):
    """Settings of `run_export`."""

    kind: ClassVar[str] = "export"

    checkpoint: str = setting(
        "runs/demo/grpo",
        "checkpoint of a language model (minionerec sft, grpo)",
        required=True,
        reads="checkpoint",
    )
    corpus: str = setting(
        "runs/demo/corpus",
        "corpus that it was trained on: of items that share an SID the more popular are named first",
        required=True,
        reads="corpus",
    )
    output: str = setting("runs/demo/export", "directory to write", required=True, decides=False)
    dtype: str = setting("saved", "dtype of the weights; saved: as in the checkpoint", known=DTYPES)
    examples: int = setting(5, "prompts written down with the lists that are to be expected", least=1)
    beams: int = setting(10, "beam width of those lists, and their length", least=2)
