"""Search of a sweep's space; the only room that imports Optuna."""

import optuna

optuna.logging.set_verbosity(optuna.logging.WARNING)  # what it says of its progress is not ours
