"""A data set of lerobot: an episode of states and actions."""

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

wide = {"dtype": "float32", "shape": (6,), "names": None}
names = ("observation.state", "observation.environment_state", "action")
data = LeRobotDataset.create("org/robot", 10, dict.fromkeys(names, wide), root="robot", use_videos=False)
for _ in range(200):
    data.add_frame({**dict.fromkeys(names, np.zeros(6, np.float32)), "task": "push"})
data.save_episode()
data.finalize()
