"""python -m pagefacets."""

from pagefacets.cli.main import main

main()
