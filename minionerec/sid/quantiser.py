"""Quantiser of item vectors, saved with the SIDs: codebooks and an optional encoder."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minionerec.core.artefacts import is_artefact, open_artefact
from minionerec.core.errors import ArtefactError, DataError
from minionerec.sid.embed.stored import LARGEST, VectorRows
from minionerec.sid.kmeans import assign

CODEBOOKS_FILE = "codebooks.safetensors"
_REMEDY = "Build the SIDs again (minionerec build-sids)."
_BLOCK = 1 << 14  # vectors at once, since hidden layers are larger than input and output


@dataclass(frozen=True)
class Encoder:
    """A multilayer perceptron with ReLU between its layers, from item vectors to the space of the codebooks.

    Attributes:
        mean: float32 (D,), subtracted from each vector.
        scale: Divisor of the centred vector.
        layers: (weight float32 (out, in), bias float32 (out,)) of each layer.
        residual: Whether the layers' output is added to their input.
    """

    mean: np.ndarray
    scale: float
    layers: Sequence[tuple[np.ndarray, np.ndarray]]
    residual: bool

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Encode vectors, float (N, D), as float32 (N, D')."""
        blocks = (vectors[start : start + _BLOCK] for start in range(0, max(1, len(vectors)), _BLOCK))
        return np.concatenate([self._encode(block) for block in blocks])

    def _encode(self, vectors: np.ndarray) -> np.ndarray:
        inputs = ((vectors - self.mean) / np.float32(self.scale)).astype(np.float32)
        values = inputs
        for position, (weight, bias) in enumerate(self.layers):
            values = (np.maximum(values, 0) if position else values) @ weight.T + bias
        outputs: np.ndarray = inputs + values if self.residual else values
        return outputs


@dataclass(frozen=True)
class Quantiser:
    """Codebooks, and the encoder into their space.

    Attributes:
        codebooks: Per level float32 (C_l, D').
        encoder: Function from item vectors (N, D) to (N, D'); None if the spaces are the same.
    """

    codebooks: Sequence[np.ndarray]
    encoder: Encoder | None = None

    @property
    def width(self) -> int:
        """Dimensions D of the item vectors."""
        return len(self.encoder.mean) if self.encoder else self.codebooks[0].shape[1]

    def points(self, vectors: np.ndarray) -> np.ndarray:
        """Item vectors, float32 (N, D), as points in the space of the codebooks, float32 (N, D').

        Raises:
            DataError: If the vectors have other dimensions.
        """
        if vectors.shape[1] != self.width:
            raise DataError(
                f"vectors have {vectors.shape[1]} dimensions, but the codebooks were made from vectors of "
                f"{self.width}. Use the encoder and the settings that they were made with."
            )
        return self.encoder(vectors) if self.encoder else vectors

    def encode(self, vectors: np.ndarray, threads: int = 1) -> np.ndarray:
        """Codes, int32 (N, L), of item vectors, float32 (N, D): the nearest code of each residual."""
        return assign(self.points(vectors), self.codebooks, threads)[0]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file: `level_0`, `level_1`...; with an encoder also `encoder.0.weight`, `mean`..."""
        from safetensors.numpy import save

        tensors = {f"level_{level}": book for level, book in enumerate(self.codebooks)}
        if self.encoder is not None:
            for layer, (weight, bias) in enumerate(self.encoder.layers):
                tensors |= {f"encoder.{layer}.weight": weight, f"encoder.{layer}.bias": bias}
            tensors |= {"mean": self.encoder.mean, "scale": np.array([self.encoder.scale], np.float32)}
            tensors |= {"residual": np.array([self.encoder.residual])}
        content = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        Path(path).write_bytes(save(content))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Quantiser":
        """Load a quantiser from an artefact of SIDs.

        Raises:
            ArtefactError: If the file is missing or no file of codebooks, or a file of the artefact was changed.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        path = Path(folder) / CODEBOOKS_FILE
        if is_artefact(folder):
            open_artefact(folder)
        try:
            return _assembled(load(path.read_bytes()))
        except FileNotFoundError:
            raise ArtefactError(
                f"{path}: no such file, so it is not known how these SIDs were made (a published table has no "
                "codebooks). Give SIDs that `minionerec build-sids` made from vectors."
            ) from None
        except KeyError as error:
            raise ArtefactError(f"{path}: not a file of codebooks ({error} is missing). {_REMEDY}") from None
        except (OSError, ValueError, TypeError, SafetensorError) as error:
            raise ArtefactError(f"{path}: not a file of codebooks ({error}). {_REMEDY}") from None


class EncodedVectors:
    """The points of vectors in a file, computed on access: float32 (N, D').

    Args:
        vectors: float32 (N, D).
        quantiser: The quantiser whose encoder is applied.
    """

    def __init__(self, vectors: VectorRows, quantiser: Quantiser):
        self._vectors, self._quantiser = vectors, quantiser
        self.shape = (len(vectors), quantiser.codebooks[0].shape[1])

    def __len__(self) -> int:
        """Number of points, N."""
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        """One point or several, as in `minionerec.sid.embed.stored.VectorRows`."""
        vectors = self._vectors[rows]
        return self._quantiser.points(vectors[None])[0] if vectors.ndim == 1 else self._quantiser.points(vectors)


def _assembled(tensors: dict[str, np.ndarray]) -> Quantiser:
    """A quantiser from the tensors that `Quantiser.save` writes.

    Raises:
        KeyError: If a tensor is missing.
        ValueError: If a tensor has another dtype or is not finite, or shapes do not match.
    """
    for name, tensor in tensors.items():
        if tensor.dtype != (np.bool_ if name == "residual" else np.float32):
            raise ValueError(f"{name} holds {tensor.dtype}")
        if name != "residual" and not (np.abs(tensor) <= LARGEST).all():
            raise ValueError(f"{name} is not finite, or beyond {LARGEST:g}")
    levels = sum(name.startswith("level_") for name in tensors)
    codebooks = [tensors[f"level_{level}"] for level in range(max(1, levels))]
    if any(book.ndim != 2 or book.size == 0 or book.shape[1] != codebooks[0].shape[1] for book in codebooks):
        raise ValueError("codebooks must have equal dimensions")
    if len(tensors) == levels:
        return Quantiser(codebooks)
    count = sum(name.endswith(".weight") for name in tensors)
    layers = [(tensors[f"encoder.{i}.weight"], tensors[f"encoder.{i}.bias"]) for i in range(count)]
    mean, scale, residual = tensors["mean"], tensors["scale"], tensors["residual"]
    width = mean.size
    for weight, bias in layers:
        if weight.ndim != 2 or weight.shape[1] != width or bias.shape != weight.shape[:1]:
            raise ValueError("layers of the encoder do not match each other")
        width = weight.shape[0]
    ends = width == codebooks[0].shape[1] and (not residual.any() or width == mean.size)
    if not layers or mean.ndim != 1 or scale.size != 1 or residual.size != 1 or not ends or float(scale[0]) == 0:
        raise ValueError("the output of the encoder does not match the codebooks")
    return Quantiser(codebooks, Encoder(mean, float(scale[0]), layers, bool(residual[0])))
