"""Muon for weight matrices, AdamW for the rest, over two or more data-parallel processes.

Muon: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks" (momentum, then an
approximate orthogonalization by five quintic Newton-Schulz steps with their coefficients).
"""

import torch
import torch.distributed as dist
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrices: Tensor, dtype: torch.dtype = torch.bfloat16, steps: int = 5) -> Tensor:
    """[N, rows, columns] -> nearly orthogonal matrices of the same shape, computed in `dtype`."""
    a, b, c = COEFFICIENTS
    x = matrices.to(dtype)
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(1, 2) if tall else x


def average(loss: Tensor, parameters: list[Tensor]) -> float:
    """Averages loss and gradients over the processes, in one exchange; returns the mean loss."""
    flat = torch.cat([loss.detach().view(1), *(parameter.grad.flatten() for parameter in parameters)])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 1
    for parameter in parameters:
        parameter.grad.copy_(flat[offset : offset + parameter.numel()].view_as(parameter))
        offset += parameter.numel()
    return flat[0].item()


class Muon:
    """Each process orthogonalizes its share of the matrices; the shares are summed into one update.

    `dtype` is of the products: bfloat16 is the faster one only where the processor multiplies it.
    """

    def __init__(
        self, parameters: list[Tensor], lr: float, momentum: float = 0.95, dtype: torch.dtype = torch.bfloat16
    ):
        self.lr, self.momentum, self.dtype, self.scale = lr, momentum, dtype, 1.0
        self.groups: dict[torch.Size, list[Tensor]] = {}
        for parameter in parameters:
            self.groups.setdefault(parameter.shape, []).append(parameter)
        self.buffers = {shape: torch.zeros(len(group), *shape) for shape, group in self.groups.items()}

    @torch.no_grad()
    def step(self) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        updates = []
        for shape, group in self.groups.items():
            gradients = torch.stack([parameter.grad for parameter in group])
            buffer = self.buffers[shape].lerp_(gradients, 1 - self.momentum)
            nesterov = gradients.lerp_(buffer, self.momentum)
            update = torch.zeros_like(nesterov)
            update[rank::world] = orthogonalize(nesterov[rank::world], self.dtype).float()
            updates.append(update * max(1.0, shape[0] / shape[1]) ** 0.5)
        flat = torch.cat([update.flatten() for update in updates])
        dist.all_reduce(flat)
        offset = 0
        for group in self.groups.values():
            for parameter in group:
                update = flat[offset : offset + parameter.numel()].view_as(parameter)
                parameter.add_(update, alpha=-self.lr * self.scale)
                offset += parameter.numel()

    def state_dict(self) -> dict:
        return {"buffers": list(self.buffers.values())}

    def load_state_dict(self, state: dict) -> None:
        for buffer, stored in zip(self.buffers.values(), state["buffers"], strict=True):
            buffer.copy_(stored)
