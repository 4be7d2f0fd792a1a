"""Search of a sweep's space; the only package that imports Optuna."""

import warnings

import optuna

optuna.logging.set_verbosity(optuna.logging.WARNING)  # what it says of its progress is not ours
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
