"""`python -m mcpmix` is the command line."""

from mcpmix.cli.app import main

if __name__ == "__main__":  # worker processes import this module again
    main()
