"""``python -m fastslow``."""

from .cli import main

main()
