"""K-means and nearest codes on a device: points are sent there once, and only codes come back."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch

from minionerec.core.errors import ConfigError

_ROWS = 1 << 14  # vectors at once


def torch_device(name: str) -> torch.device:
    """The device of a name; "auto" is a GPU where there is one.

    Raises:
        ConfigError: If there is no such device.
    """
    try:
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} cannot be used ({str(error).splitlines()[0]}). Set device: cpu.") from None


def encoder_on(codebooks: Sequence[np.ndarray], device: str) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """A function that gives vectors, float32 (n, D), their codes by codebooks that are sent to a device once.

    It returns the nearest code of each residual, level by level, int32 (n, L); and squared distances of vectors and
    reconstructions, float32 (n,). The vectors stay as they are.

    Args:
        codebooks: Per level float32 (C_l, D).
        device: A device of torch's.
    """
    books = [torch.from_numpy(np.asarray(book, dtype=np.float32)).to(device) for book in codebooks]
    squares = [(book * book).sum(1) for book in books]

    @torch.no_grad()
    def encode(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        left, codes = torch.tensor(vectors, device=device), []
        for book, own in zip(books, squares, strict=True):
            codes.append(_nearest(left, book, own))
            left -= book[codes[-1]]
        distances: np.ndarray = (left * left).sum(1).cpu().numpy()
        return torch.stack(codes, 1).int().cpu().numpy(), distances

    return encode


def _nearest(points: torch.Tensor, book: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """The nearest code of each point, int64 (n,); of equally near ones the first."""
    return torch.addmm(squares, points, book.T, alpha=-2).argmin(1)


def _blocks(points: np.ndarray, device: str) -> Callable[[], Iterable[torch.Tensor]]:
    """Gives blocks of points, float32 (n, D), on a device, kept in its memory where they fit."""

    def read() -> Iterator[torch.Tensor]:
        for start in range(0, len(points), _ROWS):
            yield torch.from_numpy(points[start : start + _ROWS]).to(device)

    if not _fits(points, torch.device(device)):
        return read
    held = list(read())
    return lambda: held


def _fits(points: np.ndarray, device: torch.device) -> bool:
    """Whether half of a GPU's free memory holds points; they are in memory already on any other device."""
    return device.type != "cuda" or points.nbytes <= torch.cuda.mem_get_info(device)[0] // 2


@torch.no_grad()
def lloyd_on(points: np.ndarray, centroids: np.ndarray, iterations: int, device: str) -> np.ndarray:
    """Centroids after Lloyd's iterations, or after the first in which no point changes its code.

    Codes that no point has take the points that are worst served. Sums are products with a matrix of ones and zeros,
    whose order of addition is fixed, so that equal input gives equal bytes on the same device.

    Args:
        points: float32 (R, D).
        centroids: float32 (C, D), where it begins.
        iterations: Most iterations.
        device: A device of torch's.

    Returns:
        float32 (C, D).
    """
    blocks, books = _blocks(points, device), torch.from_numpy(centroids).to(device)
    before: list[torch.Tensor] = []
    for _ in range(iterations):
        squares = (books * books).sum(1)
        sums, sizes = torch.zeros_like(books), torch.zeros_like(squares)
        codes: list[torch.Tensor] = []
        for block in blocks():
            codes.append(_nearest(block, books, squares))
            ones = torch.nn.functional.one_hot(codes[-1], len(books)).to(block.dtype)
            sums += ones.T @ block
            sizes += ones.sum(0)
        if before and all(map(torch.equal, before, codes)):
            break
        before = codes
        means = sums / sizes.clamp(min=1)[:, None]
        empty = (sizes == 0).nonzero()[:, 0]
        if len(empty):
            means[empty] = torch.from_numpy(points[_worst_served(blocks(), codes, books, len(empty))]).to(device)
        books = means
    return np.ascontiguousarray(books.cpu().numpy())


def _worst_served(
    blocks: Iterable[torch.Tensor], codes: Sequence[torch.Tensor], books: torch.Tensor, count: int
) -> np.ndarray:
    """The points farthest from their codes, int64 (at most count,)."""
    left = torch.cat([((block - books[own]) ** 2).sum(1) for block, own in zip(blocks, codes, strict=True)])
    found: np.ndarray = np.argsort(-left.cpu().numpy(), kind="stable")[:count]
    return found
