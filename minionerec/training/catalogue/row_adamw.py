"""AdamW of large tables of which a step reads a few rows; other rows are updated when they are next read.

AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) moves every weight at every step, also
where the gradient is zero: the moments fade, the last gradients still push, the weight decays. All of that is known in
advance as long as the gradient stays zero. A row that is next read k steps later then gets at once

    m      <- beta1^k m
    v      <- beta2^k v
    weight <- D (weight - R m / (sqrt(v) + e))

where D is the product of 1 - lr decay over those steps, e the epsilon of the row's last step, and R the sum over them
of lr (beta1 / sqrt(beta2))^j sqrt(1 - beta2^t) / (1 - beta1^t) for the j-th of them, step t, over the decay up to it. D
and R depend on the two steps alone, so that one number a step is kept for each. Bias corrections are those of the steps
at which things happen. So the weights are those of `torch.optim.AdamW` with a dense gradient full of zeros, but for
rounding, and for epsilon, which is that of the last step with a gradient instead of the current one's (it differs where
gradients are as small as epsilon). "Lazy" and sparse forms of Adam leave out the push and the decay of the steps
between, which makes rare rows learn several times slower.

Rows must be brought up to date before they are read: `refresh` those of the next step, `settle` all before weights are
evaluated or written.

Of several processes each has the gradients of its own windows. Dense ones are averaged by the wrapper of the model
(DistributedDataParallel); those of `tables` are left out there, and averaged here, at the step, of their rows alone.
Weights and moments stay the same in all processes to the bit: what one of them brings up to date and reads has a
gradient in the same step, with which the others bring it up to date, too.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import distributed

from minionerec.core.errors import ConfigError
from minionerec.core.processes import world_size

# Rows that the processes of a launch tell one another: as many as each has, in the order of the processes.


def gathered(values: torch.Tensor) -> torch.Tensor:
    """Values of all processes, concatenated, the same in each of them; with one process what is given.

    Every process must call it as often as the others, with values of one dtype and shape but for the first dimension.

    Args:
        values: (R, ...), R differs from process to process and may be 0.
    """
    world = world_size()
    if world == 1:
        return values
    size = torch.tensor([len(values)], device=values.device)
    sizes = [torch.empty_like(size) for _ in range(world)]
    distributed.all_gather(sizes, size)
    counts = [int(each) for each in sizes]
    room = values.new_zeros((max(counts), *values.shape[1:]))
    room[: len(values)] = values
    found = [torch.empty_like(room) for _ in range(world)]
    distributed.all_gather(found, room)
    return torch.cat([each[:count] for each, count in zip(found, counts, strict=True)])


def mean_of_rows(gradient: torch.Tensor | None, table: torch.Tensor) -> torch.Tensor | None:
    """The mean over all processes of the sparse gradients of a table; with one process the gradient itself.

    Args:
        gradient: Of (N, ...), sparse in its first dimension; None where a process has none.
        table: The table.

    Returns:
        A sparse tensor, the same in each process; None where no process has a gradient.
    """
    world = world_size()
    if world == 1:
        return gradient
    if gradient is None:
        rows, values = torch.empty(0, dtype=torch.int64, device=table.device), table.new_empty((0, *table.shape[1:]))
    else:
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
    rows, values = gathered(rows), gathered(values)
    if not len(rows):
        return None
    return torch.sparse_coo_tensor(rows[None], values / world, table.shape, check_invariants=False).coalesce()


_NEGLIGIBLE = 1e-10
_ROOM = 1024


class RowAdamW(torch.optim.Optimizer):
    """AdamW that leaves rows without a gradient alone until they are read.

    A parameter with sparse gradients (`minionerec.models.nn.rows.take_rows`) has its moments per row; any other is
    treated as by `torch.optim.AdamW`. A parameter without gradient in a step is one whose gradient is zero. Sparse
    gradients are taken over as soon as they are there, so that readers of `grad`, for its norm, find dense ones
    alone.

    Args:
        params: Parameters, or groups of them, floats.
        lr: Learning rate; a scheduler may change it between steps.
        betas: Decay of the moments.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled weight decay.
        tables: Those of the parameters that have sparse gradients, in an order that is the same in all processes.

    Raises:
        ConfigError: If beta2 does not exceed beta1 squared, without which a row's last gradient would push it on
            without end.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        tables: Iterable[torch.Tensor] = (),
    ):
        if not betas[0] ** 2 < betas[1] < 1:
            raise ConfigError(
                f"beta2 is {betas[1]:g} and beta1 {betas[0]:g}; rows that wait for their next gradient need a beta2 "
                f"above beta1 squared, {betas[0] ** 2:g}, and below 1."
            )
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        for group in self.param_groups:
            group["steps"] = 0
            group["decayed"] = torch.zeros(_ROOM, dtype=torch.float64)  # at step t: sum of log(1 - lr decay) up to t
            group["push"] = torch.zeros(_ROOM, dtype=torch.float64)  # at step t: R of the steps after t
            for param in group["params"]:
                param.register_post_accumulate_grad_hook(self._take_over)
        self._tables = list(tables)
        self._sparse: dict[torch.Tensor, torch.Tensor] = {}
        self._brought: dict[tuple[int, torch.device], tuple[int, torch.Tensor, torch.Tensor]] = {}

    def _take_over(self, param: torch.Tensor) -> None:
        """Keep a sparse gradient until the next step, and add those of further backward passes."""
        if param.grad is not None and param.grad.is_sparse:
            before = self._sparse.get(param)
            self._sparse[param] = param.grad if before is None else before + param.grad
            param.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients."""
        self._sparse.clear()
        super().zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step: of rows with a gradient, and of all parameters whose gradient is dense."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for param in self._tables:
            if (grad := mean_of_rows(self._sparse.pop(param, None), param)) is not None:
                self._sparse[param] = grad
        for group in self.param_groups:
            parts = []
            for param in group["params"]:
                grad = self._sparse.pop(param, param.grad)
                if grad is None:
                    continue
                rows, values = None, grad
                if grad.is_sparse:
                    grad = grad.coalesce()
                    rows, values = grad.indices()[0], grad.values()
                self._catch_up(group, param, rows)
                parts.append((param, rows, values))
            self._tick(group)
            for param, rows, values in parts:
                self._update(group, param, rows, values)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; the numbers of the steps stay on the CPU, wherever the state was moved."""
        super().load_state_dict(state_dict)
        self._brought.clear()
        for group in self.param_groups:
            group |= {name: group[name].cpu() for name in ("decayed", "push")}

    @torch.no_grad()
    def refresh(self, tables: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Bring rows up to date that are about to be read: those of each parameter, int64 (R,), which may repeat."""
        group_of = {id(param): group for group in self.param_groups for param in group["params"]}
        for param, rows in tables:
            self._catch_up(group_of[id(param)], param, rows.unique())

    @torch.no_grad()
    def settle(self) -> None:
        """Bring all rows of all parameters up to date."""
        for group in self.param_groups:
            for param in group["params"]:
                self._catch_up(group, param, None)

    def _tick(self, group: dict[str, Any]) -> None:
        """Begin a step: what it does to rows without gradient, by the step of their last one."""
        group["steps"] += 1
        step, (beta1, beta2), lr = group["steps"], group["betas"], float(group["lr"])
        if step == len(group["push"]):
            for name in ("decayed", "push"):
                group[name] = torch.cat([group[name], torch.zeros_like(group[name])])
        shrinks = 1 - lr * group["weight_decay"]
        if shrinks <= 0:
            raise ConfigError(f"learning rate {lr:g} times weight decay {group['weight_decay']:g} is 1 or more.")
        decayed, push = group["decayed"], group["push"]
        decayed[step] = decayed[step - 1] + math.log(shrinks)
        ratio = beta1 / math.sqrt(beta2)
        reach = step if ratio == 0 else min(step, math.ceil(math.log(_NEGLIGIBLE) / math.log(ratio)))
        since = torch.arange(step - reach, step)
        size = lr * math.sqrt(1 - beta2**step) / (1 - beta1**step)
        # Reckoned in weights as they were at the row's own step: a later decay shrinks the push with them.
        push[since] += size * ratio ** (step - since).double() * (decayed[since] - decayed[step]).exp()

    def _numbers(self, group: dict[str, Any], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Values kept of each step, `decayed` and `push`, on a device, brought there once a step."""
        step, key = group["steps"], (id(group), device)
        if key not in self._brought or self._brought[key][0] != step:
            decayed, push = (group[name][: step + 1].to(device) for name in ("decayed", "push"))
            self._brought[key] = (step, decayed, push)
        return self._brought[key][1:]

    def _state(self, param: torch.Tensor) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self.state[param]
        if not state:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(param), torch.zeros_like(param)
        return state

    def _catch_up(self, group: dict[str, Any], param: torch.Tensor, rows: torch.Tensor | None) -> None:
        """Bring distinct rows, all if None, up to the last step."""
        state, now = self.state[param], group["steps"]
        if "last" not in state:
            if rows is None:  # dense so far: always up to date
                return
            self._state(param)["last"] = torch.zeros(len(param), device=param.device)
        late = state["last"] < now if rows is None else state["last"][rows] < now
        rows = late.nonzero()[:, 0] if rows is None else rows[late]
        if not len(rows):
            return
        last = state["last"][rows].long()
        decayed, push = self._numbers(group, param.device)
        shape = (-1, *[1] * (param.dim() - 1))
        keeps = [(decayed[now] - decayed[last]).exp(), push[last]]
        keeps += [beta ** (now - last).double() for beta in group["betas"]]
        shrinks, pushed, first, second = (keep.to(param).view(shape) for keep in keeps)
        correction = (1 - group["betas"][1] ** last.clamp(min=1).double()).sqrt().to(param).view(shape)
        average, square = state["exp_avg"][rows], state["exp_avg_sq"][rows]
        pull = average / (square.sqrt() + group["eps"] * correction)
        param[rows] = shrinks * (param[rows] - pushed * pull)
        state["exp_avg"][rows], state["exp_avg_sq"][rows] = first * average, second * square
        state["last"][rows] = float(now)

    def _update(
        self, group: dict[str, Any], param: torch.Tensor, rows: torch.Tensor | None, grad: torch.Tensor
    ) -> None:
        """AdamW's step of distinct rows that are up to date, all if None."""
        state, step, (beta1, beta2), lr = self._state(param), group["steps"], group["betas"], float(group["lr"])
        if rows is None:
            weight, average, square = param, state["exp_avg"], state["exp_avg_sq"]
        else:
            weight, average, square = param[rows], state["exp_avg"][rows], state["exp_avg_sq"][rows]
        weight.mul_(1 - lr * group["weight_decay"])
        average.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        root = square.sqrt().div_(math.sqrt(1 - beta2**step)).add_(group["eps"])
        weight.addcdiv_(average, root, value=-lr / (1 - beta1**step))
        if rows is not None:
            param[rows], state["exp_avg"][rows], state["exp_avg_sq"][rows] = weight, average, square
        if "last" in state:
            state["last"][slice(None) if rows is None else rows] = float(step)
