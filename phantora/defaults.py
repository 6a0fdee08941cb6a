"""What a run has where nobody says otherwise."""

CLUSTER = "1x1xH100"
