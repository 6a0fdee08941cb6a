"""Starting ranks: fork server, torchrun's environment, virtual clock, output, supervision."""
