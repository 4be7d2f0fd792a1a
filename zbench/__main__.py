"""`python -m zbench`: the command, for environments whose programs are not on the path."""

from zbench.cli.main import main

if __name__ == "__main__":
    main()
