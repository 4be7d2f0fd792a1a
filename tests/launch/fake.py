"""The model of trials whose workers are fakes: it has to be there, nothing builds it."""


def model() -> None:
    """Never called."""
