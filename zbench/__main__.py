"""`python -m zbench` runs the command, for environments whose scripts are not on the path."""

from zbench.cli.main import main

if __name__ == "__main__":
    main()
