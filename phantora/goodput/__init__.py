"""From a step to a job: failures, checkpoints, restarts, stragglers and spare hosts of a long training run."""
