"""Settings of sequential recommenders; light to import, so that `--help` answers at once."""

from dataclasses import dataclass, field

from minionerec.core.errors import ConfigError

PROTOCOL_NAMES = ("a", "b", "rows")
SEEN = ("mask", "zero", "keep")
MONITORS = ("NDCG@10", "NDCG@20")


@dataclass
class SequentialConfig:
    """Settings of `run_sequential`; 0 or an empty word takes what the protocol says."""

    model: str = field(default="sasrec", metadata={"help": "which recommender; an unknown name lists the known ones"})
    data: str = field(
        default="",
        metadata={
            "help": "'user item item ...' file (protocols a and b; may begin with $MINIONEREC_DATA) or corpus directory"
        },
    )
    protocol: str = field(
        default="a",
        metadata={
            "help": "a: last two out, seen items masked; b: 5-core, last two out, seen items compete; rows: the "
            "corpus's own rows"
        },
    )
    output: str = field(default="", metadata={"help": "directory for one folder per seed, and summary.json"})
    seeds: int = field(default=1, metadata={"help": "how many seeds, one after another"})
    seed: int = field(default=0, metadata={"help": "first seed; the others follow by one; 0: the protocol's"})
    hyper: list[str] = field(
        default_factory=list, metadata={"help": "hyper-parameters of the model, e.g. hidden_size=128 num_layers=2"}
    )
    items: str = field(default="", metadata={"help": "JSON of item id → title for a file of sequences"})
    vectors: str = field(
        default="",
        metadata={
            "help": "text vectors for models with text_width: tfidf (of the titles), a .npy file with one row an item, "
            "or the output of scripts/embed_items.py; empty: none"
        },
    )
    vector_width: int = field(default=64, metadata={"help": "width of tfidf vectors"})
    sids: str = field(
        default="", metadata={"help": "SID directory (scripts/build_sids.py), to measure at SID level too; rows only"}
    )
    max_len: int = field(default=0, metadata={"help": "most items of a history that the model reads"})
    epochs: int = field(default=200, metadata={"help": "most epochs"})
    stop_after: int = field(default=0, metadata={"help": "stop after this many epochs in a row without improvement"})
    batch_size: int = field(default=0, metadata={"help": "rows (or windows) a step"})
    learning_rate: float = field(default=1e-3, metadata={"help": "learning rate of Adam"})
    beta2: float = field(default=0.999, metadata={"help": "second beta of Adam"})
    weight_decay: float = field(default=0.0, metadata={"help": "decoupled weight decay of matrices and tables"})
    all_positions: bool = field(
        default=False,
        metadata={"help": "train at all positions of user windows instead of on rows: another recipe; causal models"},
    )
    seen: str = field(
        default="",
        metadata={
            "help": "scores of seen items: mask (never recommended), zero (set to 0.0, as published under a) or keep"
        },
    )
    monitor: str = field(default="", metadata={"help": "validation metric that decides: NDCG@10, or NDCG@20"})
    list_length: int = field(default=50, metadata={"help": "items of each row in the predictions file"})
    device: str = field(default="auto", metadata={"help": "where to compute: auto, cpu, cuda, mps"})
    resamples: int = field(default=2000, metadata={"help": "bootstrap resamples for the intervals"})

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read."""
        for name in ("data", "output"):
            if not getattr(self, name):
                raise ConfigError(f"{name} is empty; give --{name}.")
        known = {"protocol": PROTOCOL_NAMES, "seen": ("", *SEEN), "monitor": ("", *MONITORS)}
        for name, allowed in known.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"unknown {name} {getattr(self, name)!r}; known: {', '.join(word for word in allowed if word)}."
                )
        least = {"seeds": 1, "seed": 0, "epochs": 1, "stop_after": 0, "batch_size": 0, "max_len": 0, "vector_width": 1,
                 "list_length": 1, "resamples": 1}  # fmt: skip
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {low}.")
        if self.learning_rate <= 0:
            raise ConfigError(f"learning_rate is {self.learning_rate}; it must be above 0.")
        if self.sids and self.protocol != "rows":
            raise ConfigError(
                f"sids is {self.sids!r}, but protocol is {self.protocol!r}, whose items have no SIDs; leave sids out "
                "or take protocol rows."
            )
        if self.items and self.protocol == "rows":
            raise ConfigError(f"items is {self.items!r}, but a corpus has its own titles; leave items out.")
        if self.monitor == "NDCG@20" and self.protocol == "b":
            raise ConfigError("monitor is NDCG@20, but protocol b measures at 1, 5 and 10; leave monitor out.")
