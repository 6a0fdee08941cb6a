"""Speed and scale of the simulator on this machine."""
