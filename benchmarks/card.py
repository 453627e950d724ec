"""What benchmarks share on a GPU: waiting for it, its name, and what its matrix products reach."""

import statistics
import time
from typing import Any


def wait(device: str) -> None:
    """Wait until everything queued on a GPU is done; on a CPU nothing is pending."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize()


def clock(device: str) -> float:
    """Seconds of the clock, read when nothing is pending."""
    wait(device)
    return time.perf_counter()


def product_flops(device: str, dtype: str = "bfloat16", size: int = 8192, times: int = 10) -> float:
    """Operations a second of products of two square matrices of random numbers: the median of some, one by one.

    Args:
        device: "cpu" or "cuda".
        dtype: Of the matrices.
        size: Their width; a product counts 2 size³ operations.
        times: Products that are timed, after three that are not.
    """
    import torch

    one, other = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
    spent = []
    for number in range(times + 3):
        start = clock(device)
        one @ other
        if number >= 3:
            spent.append(clock(device) - start)
        else:
            wait(device)
    return 2 * size**3 / statistics.median(spent)


def card_figures(device: str, dtype: str = "bfloat16") -> dict[str, Any]:
    """What a line of results says of a GPU: its name and `product_tflops`; nothing on a CPU."""
    if device == "cpu":
        return {}
    import torch

    return {
        "card": torch.cuda.get_device_name(),
        "product_tflops": round(product_flops(device, dtype) / 1e12, 1),
        "product_of": f"8192 x 8192, {dtype}",
    }


def used_share(operations: float, seconds: float, figures: dict[str, Any]) -> float | None:
    """Share of the card's own speed of products that some operations reached; None without a card."""
    rate = figures.get("product_tflops")
    return None if rate is None else round(operations / seconds / rate / 1e12, 4)


def peak_gib(device: str) -> float | None:
    """The most memory that tensors of this process took on a GPU since it was asked to forget; None on a CPU."""
    if device == "cpu":
        return None
    import torch

    return round(torch.cuda.max_memory_allocated() / 2**30, 2)


def forget_peak(device: str) -> None:
    """Begin again to look for the most memory of a GPU."""
    if device != "cpu":
        import torch

        torch.cuda.reset_peak_memory_stats()
