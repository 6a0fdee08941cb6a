"""Pages to look at a run with, and the server that hands them to a browser on this machine."""
