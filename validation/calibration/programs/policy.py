"""Policy gradients: a rollout of single steps of a tensor environment without gradients, then epochs of small minibatches."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.calibration.programs.common import Step, main


class Policy(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, dim), nn.Tanh(), nn.Linear(dim, dim), nn.Tanh())
        self.actor, self.critic = nn.Linear(dim, 6), nn.Linear(dim, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.body(x)
        return self.actor(h), self.critic(h).squeeze(-1)


def build(dim: int, envs: int, horizon: int, epochs: int, minibatches: int) -> Step:
    policy = Policy(dim).cuda()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4, eps=1e-5)
    drift = torch.randn(6, 24, device="cuda") * 0.1

    def step() -> None:
        state = torch.zeros(envs, 24, device="cuda")
        states, actions, logs, rewards, values = [], [], [], [], []
        with torch.no_grad():
            for _ in range(horizon):
                logits, value = policy(state)
                action = torch.distributions.Categorical(logits=logits, validate_args=False).sample()
                states.append(state)
                actions.append(action)
                logs.append(F.log_softmax(logits, -1).gather(1, action[:, None]).squeeze(1))
                values.append(value)
                state = torch.tanh(state * 0.95 + drift[action])
                rewards.append(-state.pow(2).mean(-1))
            _, last = policy(state)
            advantages, running = [last] * horizon, torch.zeros_like(last)
            for t in reversed(range(horizon)):
                after = values[t + 1] if t + 1 < horizon else last
                running = rewards[t] + 0.99 * after - values[t] + 0.99 * 0.95 * running
                advantages[t] = running
        state, action, log, advantage, value = (
            torch.stack(v).flatten(0, 1) for v in (states, actions, logs, advantages, values)
        )
        total = envs * horizon
        for _ in range(epochs):
            for part in torch.randperm(total, device="cuda").chunk(minibatches):
                logits, now = policy(state[part])
                new = F.log_softmax(logits, -1)
                ratio = (new.gather(1, action[part][:, None]).squeeze(1) - log[part]).exp()
                a = advantage[part]
                a = (a - a.mean()) / (a.std() + 1e-8)
                surrogate = -torch.min(a * ratio, a * ratio.clamp(0.8, 1.2)).mean()
                entropy = -(new.exp() * new).sum(-1).mean()
                loss = surrogate + 0.5 * F.mse_loss(now, value[part] + advantage[part]) - 0.01 * entropy
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                optimizer.step()

    return step


main("policy", build, {
    "base": dict(dim=64, envs=32, horizon=32, epochs=2, minibatches=4),
    "long": dict(dim=64, envs=32, horizon=96, epochs=2, minibatches=4),
    "epochs": dict(dim=64, envs=64, horizon=16, epochs=6, minibatches=8),
    "wide": dict(dim=512, envs=256, horizon=32, epochs=3, minibatches=4),
})
