"""What a Triton kernel does when it is launched, read off its IR (TTIR): `parse`, `walk`, `work`."""
