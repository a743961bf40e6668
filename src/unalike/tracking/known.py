"""The trackers that have names; importing this module registers them."""

from unalike.tracking import mlflow, tensorboard, wandb

__all__ = ["mlflow", "tensorboard", "wandb"]
