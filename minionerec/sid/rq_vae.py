"""Residual-quantised variational autoencoder (RQ-VAE), from scratch or on top of k-means codebooks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from minionerec.core.log import get_logger, progress
from minionerec.sid.kmeans import residual_kmeans
from minionerec.sid.on_device import torch_device
from minionerec.sid.quantiser import Encoder, Quantiser

logger = get_logger(__name__)

COMMITMENT = 0.25
CHECK_EVERY = 10  # epochs between checks of the error
_START_POINTS = 256  # k-means points per code
_BLOCK = 1 << 14  # vectors at once


def _mlp(sizes: Sequence[int], residual: bool, generator: torch.Generator) -> nn.Sequential:
    """Linear layers with ReLU between them; the last layer of a residual MLP is initialised to zero."""
    layers = [nn.Linear(*pair, device="meta").to_empty(device="cpu") for pair in pairwise(sizes)]
    for layer in layers:
        nn.init.xavier_normal_(layer.weight, generator=generator)
        nn.init.zeros_(layer.bias)
    if residual:
        nn.init.zeros_(layers[-1].weight)
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])


class _RqVae(nn.Module):
    """Encoder, residual codebooks and decoder; with `residual`, encoder and decoder are added to their inputs.

    Vectors (N, D) are centred and divided by their mean standard deviation.
    """

    def __init__(
        self, vectors: np.ndarray, hidden: Sequence[int], latent: int, residual: bool, generator: torch.Generator
    ):
        super().__init__()
        self.mean = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
        self.scale = float(vectors.std(axis=0, dtype=np.float64).mean()) or 1.0
        sizes = [vectors.shape[1], *hidden, latent]
        self.encoder = _mlp(sizes, residual, generator)
        self.decoder = _mlp(sizes[::-1], residual, generator)
        self.residual = residual
        self.codebooks = nn.ParameterList()

    def standardised(self, vectors: np.ndarray) -> torch.Tensor:
        """Vectors (n, D) as inputs, on the model's device."""
        values = (vectors - self.mean) / np.float32(self.scale)
        return torch.from_numpy(values.astype(np.float32)).to(next(self.parameters()).device)

    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        """Latents (n, D') of items (n, D)."""
        latents: torch.Tensor = self.encoder(inputs)
        return inputs + latents if self.residual else latents

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Items (n, D) of latents (n, D')."""
        items: torch.Tensor = self.decoder(latents)
        return latents + items if self.residual else items

    def quantise(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """Codes (n, L), the codebooks' loss, and the residuals before each level and after the last: L + 1 (n, D')."""
        residuals, codes, loss = [latents], [], latents.new_zeros(())
        for book in self.codebooks:
            residual = residuals[-1]
            with torch.no_grad():
                code = torch.addmm((book * book).sum(1), residual, book.T, alpha=-2).argmin(1)
            chosen = book[code]
            loss = loss + nn.functional.mse_loss(chosen, residual.detach())
            loss = loss + COMMITMENT * nn.functional.mse_loss(residual, chosen.detach())
            codes.append(code)
            residuals.append(residual - chosen.detach())
        return torch.stack(codes, 1), loss / len(self.codebooks), residuals

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The loss of a batch: squared error of the decoded items plus the codebooks' loss."""
        latents = self.encode(inputs)
        _, loss, residuals = self.quantise(latents)
        # Straight-through: the decoder sees sums of codes, and its gradient reaches the encoder as if it saw latents.
        decoded = self.decode(latents - residuals[-1].detach())
        return nn.functional.mse_loss(decoded, inputs) + loss


def fit_rq_vae(
    vectors: np.ndarray,
    codebook_sizes: Sequence[int],
    seed: int,
    *,
    plus: bool = False,
    hidden_sizes: Sequence[int] = (512, 256, 128),
    latent_size: int = 32,
    epochs: int = 500,
    learning_rate: float = 1e-3,
    batch_size: int = 256,
    patience: int = 10,
    threads: int = 1,
    device: str = "cpu",
) -> tuple[Quantiser, list[float], int, int]:
    """Train a residual-quantised VAE (Lee et al., 2022; for semantic IDs, Rajput et al., 2023, section 3.1).

    Encoder and decoder are mirrored MLPs; level l takes the nearest code of the residual of the earlier levels. The
    loss is the mean squared error of the decoded items plus the mean over levels of ||sg(r) - e||^2 +
    0.25 ||r - sg(e)||^2, as means over elements, with a straight-through gradient from decoder to encoder; the
    optimiser is AdamW. Codebooks are initialised by residual k-means of the initial latents. With `plus`, training
    fine-tunes residual k-means of the vectors: the encoder is z = x + MLP(x), whose last layer is initialised to zero.

    Deviations:

    1. Vectors are centred and divided by one number.
    2. With `plus`, the decoder is x = q + MLP(q), whose last layer is initialised to zero as well.
    3. Every 10 epochs the error is computed over all items, and unused codes move to residuals of random items.
    4. Training stops after `patience` checks without a new least error; the best check's weights are returned.

    Args:
        vectors: float32 (N, D), all finite.
        codebook_sizes: Codes per level.
        seed: Seed of weights, k-means, order of batches and revived codes; results are equal in every byte on the same
            device with the same `threads`.
        plus: Whether to fine-tune residual k-means of the vectors.
        hidden_sizes: Sizes of the encoder's hidden layers; the decoder has them in reverse.
        latent_size: Dimensions D' of codebooks; ignored with `plus`, where it is D.
        epochs: Maximum number of passes over the items; 0 keeps the initial weights.
        learning_rate: Learning rate of AdamW, without weight decay.
        batch_size: Items per step.
        patience: Checks, 10 epochs apart, without a new least error before training stops.
        threads: CPU threads of torch and BLAS during the call.
        device: "auto" (a GPU if there is one), or a torch device.

    Returns:
        The quantiser of the best check; the share of the vectors' variance that decoded items leave, at the start and
        at each check; the index of the best of these; and the number of revived codes over all levels and checks.

    Raises:
        DataError: If the vectors are not finite, or there are fewer items than codes.
        ConfigError: If the device cannot be used.
    """
    target_device, generator = torch_device(device), torch.Generator().manual_seed(seed)
    with _torch_threads(threads):
        model = _RqVae(vectors, hidden_sizes, vectors.shape[1] if plus else latent_size, plus, generator)
        latents = _encoder(model)(vectors)
        train_rows = _START_POINTS * max(codebook_sizes, default=1)
        _, books = residual_kmeans(latents, codebook_sizes, seed, train_rows=train_rows, threads=threads)
        model.codebooks.extend(nn.Parameter(torch.from_numpy(book)) for book in books)
        model.to(target_device)
        errors, best, revived = _train(model, vectors, generator, learning_rate, epochs, batch_size, patience)
    model.to("cpu")
    books = [book.detach().numpy().copy() for book in model.codebooks]
    return Quantiser(books, _encoder(model)), errors, best, revived


def _train(
    model: _RqVae,
    vectors: np.ndarray,
    generator: torch.Generator,
    learning_rate: float,
    epochs: int,
    batch_size: int,
    patience: int,
) -> tuple[list[float], int, int]:
    """Train until `patience` checks bring no new least error, and restore the weights of the best check.

    Returns:
        The error at the start and at each check, the index of the least, and the number of revived codes.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    errors = [_check(model, vectors)[0]]
    best, best_state, revived = 0, _state(model), 0
    for epoch in progress(range(1, epochs + 1), "RQ-VAE", unit="epoch"):
        order = torch.randperm(len(vectors), generator=generator)
        for start in range(0, len(order), batch_size):
            optimiser.zero_grad(set_to_none=True)
            model(model.standardised(vectors[order[start : start + batch_size].numpy()])).backward()
            optimiser.step()
        if epoch % CHECK_EVERY and epoch < epochs:
            continue
        error, codes = _check(model, vectors)
        errors.append(error)
        if error < errors[best]:
            best, best_state = len(errors) - 1, _state(model)
        elif len(errors) - 1 - best >= patience:
            break
        if epoch < epochs:
            revived += _revive(model, optimiser, vectors, codes, generator)
    model.load_state_dict(best_state)
    logger.info(
        "RQ-VAE: decoded items leave %.1f%% of the variance (%.1f%% at first; best of %d checks); %d codes revived.",
        100 * errors[best],
        100 * errors[0],
        len(errors),
        revived,
    )
    return errors, best, revived


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _encoder(model: _RqVae) -> Encoder:
    layers = [layer for layer in model.encoder if isinstance(layer, nn.Linear)]
    weights = [(layer.weight.detach().numpy().copy(), layer.bias.detach().numpy().copy()) for layer in layers]
    return Encoder(model.mean, model.scale, weights, model.residual)


@torch.no_grad()
def _check(model: _RqVae, vectors: np.ndarray) -> tuple[float, torch.Tensor]:
    """Share of the variance that decoded items leave, and all codes (N, L)."""
    error = total = 0.0
    codes = []
    for start in range(0, len(vectors), _BLOCK):
        inputs = model.standardised(vectors[start : start + _BLOCK])
        latents = model.encode(inputs)
        block_codes, _, residuals = model.quantise(latents)
        codes.append(block_codes)
        error += float((model.decode(latents - residuals[-1]) - inputs).square().sum(dtype=torch.float64))
        total += float(inputs.square().sum(dtype=torch.float64))
    return (error / total if total else 0.0), torch.cat(codes)


@torch.no_grad()
def _revive(
    model: _RqVae,
    optimiser: torch.optim.Optimizer,
    vectors: np.ndarray,
    codes: torch.Tensor,
    generator: torch.Generator,
) -> int:
    """Move unused codes to the residuals of random items, and return the number of such codes."""
    revived = 0
    books: Any = model.codebooks
    for level, book in enumerate(books):
        dead = torch.bincount(codes[:, level], minlength=len(book)).eq(0).nonzero().squeeze(1)
        if not len(dead):
            continue
        items = torch.randint(len(codes), (len(dead),), generator=generator)
        _, _, residuals = model.quantise(model.encode(model.standardised(vectors[items.numpy()])))
        book[dead] = residuals[level]
        for state in ("exp_avg", "exp_avg_sq"):
            optimiser.state[book][state][dead] = 0
        revived += len(dead)
    return revived
