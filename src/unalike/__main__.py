"""`python -m unalike` is the command `unalike`; `torchrun` starts it this way."""

from unalike.cli import main

main()
