"""A shop of twelve things with every stage on it, made in seconds, and commands as a user types them."""

import csv
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import yaml

from minionerec.core.artefacts import DIGEST, MANIFEST, digest_of, file_sha256
from support.commands import Outcome, command

EVALUATED = {"eval_examples": 8, "eval_beams": 10}
LENGTHS = {"epochs": 1, "batch_size": 16, "device_batch_size": 8, **EVALUATED, "evals_per_epoch": 3}
STAGES = {
    "prepare-data": {"source": "tables", "items": "items.csv", "interactions": "interactions.csv", "output": "corpus"},
    "embed-items": {"corpus": "corpus", "output": "vectors", "dimensions": 6},
    "build-sids": {"corpus": "corpus", "output": "sids", "codebook_sizes": [4, 4], "dimensions": 6},
    "sft": {
        **{"corpus": "corpus", "sids": "sids", "output": "sft", "hidden_size": 16, "layers": 1, "heads": 2},
        **{"kv_heads": 1, "inner_size": 24, "text_vocabulary": 300, "all_positions": True, **LENGTHS},
    },
    "train-catalogue": {
        **{"corpus": "corpus", "sids": "sids", "output": "catalogue", "hidden_size": 16, "layers": 1, "heads": 2},
        **{"inner_size": 24, "vector_width": 6, **LENGTHS},
    },
    "grpo": {
        **{"corpus": "corpus", "checkpoint": "sft", "output": "grpo", "generations": 4, "prompts_per_step": 16},
        **{"prompts_per_device": 8, "max_steps": 4, **EVALUATED, "evals_per_epoch": 4},
    },
    "dpo": {
        **{"corpus": "corpus", "checkpoint": "sft", "output": "dpo", "negatives": 3, "prompts_per_step": 32},
        **{"prompts_per_device": 16, "epochs": 1, **EVALUATED, "evals_per_epoch": 2},
    },
    "train-tiger": {
        **{"corpus": "corpus", "sids": "sids", "output": "tiger", "hidden_size": 16, "layers": 1, "heads": 2},
        **{"head_size": 8, "inner_size": 24, **LENGTHS, "evals_per_epoch": 1},
    },
    "extend": {"checkpoint": "catalogue", "corpus": "corpus", "sids": "sids", "output": "extended", "lift": 1.0},
    "train-sequential": {
        **{"corpus": "corpus", "model": "sasrec", "output": "sequential", "epochs": 1, "protocol": "rows"},
        **{"hyper": {"hidden_size": 8}, "list_length": 5, "resamples": 20},
    },
    "eval-beam": {
        **{"corpus": "corpus", "checkpoint": "sft", "output": "predictions", "beams": 5, "ks": [1, 5]},
        "resamples": 20,
    },
    "report": {
        **{"corpus": "corpus", "sids": "sids", "predictions": {"sft": "predictions"}, "output": "report"},
        "resamples": 20,
    },
    "sid-report": {"corpus": "corpus", "tables": {"own": "sids"}, "output": "sids-page"},
    "export": {"checkpoint": "sft", "corpus": "corpus", "output": "export"},
    "recommend": {"checkpoint": "sft", "histories": "histories.jsonl", "output": "lists", "k": 3},
}
OUTPUTS = [settings["output"] for settings in STAGES.values()]


def write_shop(folder: Path) -> None:
    """The two tables, a file of histories, and a file of settings for each stage."""
    rng = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    items = [(f"i{n}", f"{['tea', 'ink'][n // 6]} thing {n % 6}", "A thing") for n in range(12)]
    interactions = []
    for user in range(40):
        item, time = rng.randrange(12), rng.randrange(1000)
        for _ in range(rng.randint(4, 6)):
            interactions.append((f"u{user}", f"i{item}", time))
            item, time = (item + 1) % 12, time + rng.randint(1, 50)
    for name, rows in (
        ("items", [("item_id", "title", "description"), *items]),
        ("interactions", [("user_id", "item_id", "timestamp"), *interactions]),
    ):
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
    histories = [{"history": ["i1", "i2"]}, {"history": ["i7"]}]
    (folder / "histories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in histories), encoding="utf-8")
    for name, settings in STAGES.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


def stage(folder: Path, name: str, *words: str) -> Outcome:
    return command(folder, name, "--config", f"{name}.yaml", *words)


def make_shop(folder: Path, names: tuple[str, ...] = tuple(STAGES)) -> Path:
    """The shop with the outputs of stages."""
    write_shop(folder)
    for name in names:
        done = stage(folder, name)
        assert done.status == 0, (name, done)
    return folder


def copied(shop: Path, folder: Path, leave_out: tuple[str, ...] = ()) -> Path:
    """A copy of a shop, or of an artefact, to be spoilt, without some of its folders."""

    def ignore(path, names):
        return leave_out if Path(path) == shop else ()

    shutil.copytree(shop, folder, ignore=ignore, copy_function=shutil.copyfile)  # content alone, which is quick
    return folder


def spoil_manifest(artefact: Path, change: Callable[[dict], object]) -> None:
    """Change a manifest as a hostile maker would."""
    content = json.loads((artefact / MANIFEST).read_text(encoding="utf-8"))
    change(content)
    (artefact / MANIFEST).write_text(json.dumps(content), encoding="utf-8")


def sign(artefact: Path) -> None:
    """Write the hashes of all files into the manifest: a hostile maker's artefact agrees with itself."""
    files = [file for file in sorted(artefact.rglob("*")) if file.is_file() and file.name != MANIFEST]
    hashes = {str(file.relative_to(artefact)): file_sha256(file) for file in files}
    spoil_manifest(artefact, lambda content: content.update(files=hashes))
    spoil_manifest(artefact, lambda content: content.update({DIGEST: digest_of(content)}))


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but for run records, which hold what differs between two runs of the same thing."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.endswith("record.json")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}
