"""All that `make spec` checks: of one ledger (`models`) and of logs (`log_models`)."""

from __future__ import annotations

from tests.spec.log_models import LOG_GOALS, LOG_MODELS, LOG_REMOVALS, LogModel
from tests.spec.models import GOALS, MODELS, REMOVALS, Model

ALL_MODELS: tuple[Model | LogModel, ...] = (*MODELS, *LOG_MODELS)
ALL_REMOVALS = (*REMOVALS, *LOG_REMOVALS)
ALL_GOALS = (*GOALS, *LOG_GOALS)


def model_named(name: str) -> Model | LogModel:
    """The model of this name."""
    for model in ALL_MODELS:
        if model.name == name:
            return model
    raise LookupError(f"no model {name!r}; known: {', '.join(model.name for model in ALL_MODELS)}")
