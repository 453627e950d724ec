"""K-means and nearest codes on a torch device: points are copied to it once, and only codes are copied back."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch

from minionerec.core.errors import ConfigError

_BLOCK = 1 << 14  # vectors at once


def torch_device(name: str) -> torch.device:
    """The device of a name; "auto" is a GPU if there is one.

    Raises:
        ConfigError: If the device cannot be used.
    """
    try:
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} cannot be used ({str(error).splitlines()[0]}). Set device: cpu.") from None


def encoder_on(codebooks: Sequence[np.ndarray], device: str) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Copy codebooks to a device, and return a function that encodes vectors there.

    Args:
        codebooks: Per level float32 (C_l, D).
        device: A torch device.

    Returns:
        Function from vectors, float32 (n, D), to the nearest code of each residual, int32 (n, L), and the squared
        distances between vectors and reconstructions, float32 (n,).
    """
    books = [torch.from_numpy(np.asarray(book, dtype=np.float32)).to(device) for book in codebooks]
    squares = [(book * book).sum(1) for book in books]

    @torch.no_grad()
    def encode(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        residuals, codes = torch.tensor(vectors, device=device), []
        for book, book_squares in zip(books, squares, strict=True):
            codes.append(_nearest(residuals, book, book_squares))
            residuals -= book[codes[-1]]
        distances: np.ndarray = (residuals * residuals).sum(1).cpu().numpy()
        return torch.stack(codes, 1).int().cpu().numpy(), distances

    return encode


def _nearest(points: torch.Tensor, book: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """The nearest code of each point, int64 (n,); ties: the lowest."""
    return torch.addmm(squares, points, book.T, alpha=-2).argmin(1)


def _blocks(points: np.ndarray, device: str) -> Callable[[], Iterable[torch.Tensor]]:
    """Function that iterates over blocks of points, float32 (n, D), on a device; cached there if they fit."""

    def read() -> Iterator[torch.Tensor]:
        for start in range(0, len(points), _BLOCK):
            yield torch.from_numpy(points[start : start + _BLOCK]).to(device)

    if not _fits(points, torch.device(device)):
        return read
    cached = list(read())
    return lambda: cached


def _fits(points: np.ndarray, device: torch.device) -> bool:
    """Whether points fit into half of a GPU's free memory; True for any other device."""
    return device.type != "cuda" or points.nbytes <= torch.cuda.mem_get_info(device)[0] // 2


@torch.no_grad()
def lloyd_on(points: np.ndarray, centroids: np.ndarray, iterations: int, device: str) -> np.ndarray:
    """Centroids after Lloyd's iterations, which stop early when no point changes its code.

    Codes without points move to the points farthest from their centroids. Sums are products with a one-hot matrix,
    whose order of addition is fixed, so equal inputs give equal bytes on the same device.

    Args:
        points: float32 (R, D).
        centroids: float32 (C, D), initial centroids.
        iterations: Maximum number of iterations.
        device: A torch device.

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
            means[empty] = torch.from_numpy(points[_farthest_points(blocks(), codes, books, len(empty))]).to(device)
        books = means
    return np.ascontiguousarray(books.cpu().numpy())


def _farthest_points(
    blocks: Iterable[torch.Tensor], codes: Sequence[torch.Tensor], books: torch.Tensor, count: int
) -> np.ndarray:
    """Indices of the points farthest from their centroids, int64 (at most count,)."""
    distances = torch.cat(
        [((block - books[block_codes]) ** 2).sum(1) for block, block_codes in zip(blocks, codes, strict=True)]
    )
    farthest: np.ndarray = np.argsort(-distances.cpu().numpy(), kind="stable")[:count]
    return farthest
