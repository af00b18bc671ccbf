"""`python -m evalsuite`: the command line."""

from evalsuite.cli import main

if __name__ == "__main__":
    main()
