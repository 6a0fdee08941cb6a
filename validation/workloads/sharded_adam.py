"""Adam whose states are spread over all ranks: the communication and the kernels of a distributed fused Adam."""

from __future__ import annotations

import torch
import torch.distributed as dist


class ShardedAdam:
    """Parameters and gradients of a model become views of two buffers in its type; masters are float32.

    A step reduces and scatters the gradients, clips by their norm, changes the own shard, and gathers the parameters.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        parameters = list(model.parameters())
        ranks = dist.get_world_size()
        length = sum(map(torch.Tensor.numel, parameters))
        length += -length % ranks
        self.parameters = parameters[0].new_zeros(length)
        self.gradients = torch.zeros_like(self.parameters)
        begin = 0
        for parameter in parameters:
            end = begin + parameter.numel()
            strides = parameter.stride()
            for buffer, value in ((self.parameters, parameter.data), (self.gradients, None)):
                view = buffer[begin:end].as_strided(parameter.shape, strides, begin)
                if value is None:
                    parameter.grad = view
                else:
                    view.copy_(value)
                    parameter.data = view
            begin = end
        self.shard = self.parameters.new_empty(length // ranks)
        self.master = torch.zeros(length // ranks, device=self.parameters.device)
        self.moments = torch.zeros((2, length // ranks), device=self.parameters.device)
        self.steps = torch.zeros((), device=self.parameters.device)

    def step(self) -> None:
        dist.reduce_scatter_tensor(self.shard, self.gradients)
        gradient = self.shard.float()
        norm = gradient.square().sum()
        dist.all_reduce(norm)
        scale = norm.sqrt().clamp(min=1.0)
        first, second = self.moments
        torch._fused_adamw_(
            [self.master],
            [gradient],
            [first],
            [second],
            [],
            [self.steps],
            amsgrad=False,
            lr=1e-7,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
            grad_scale=scale,
        )
        self.shard.copy_(self.master)
        dist.all_gather_into_tensor(self.parameters, self.shard)
        self.gradients.zero_()
