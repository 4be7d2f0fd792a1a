"""Experiment trackers that a sweep reports to: `--log mlflow | wandb | tensorboard`, or plug-ins."""
