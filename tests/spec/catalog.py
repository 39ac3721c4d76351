"""All that `make spec` checks: of one ledger (`models`), of its record (`record_models`), of logs (`log_models`), and of a
metastore's members (`council_models`)."""

from __future__ import annotations

from tests.spec.council_models import COUNCIL_GOALS, COUNCIL_MODELS, COUNCIL_REMOVALS, CouncilModel
from tests.spec.log_models import LOG_GOALS, LOG_MODELS, LOG_REMOVALS, LogModel
from tests.spec.models import GOALS, MODELS, REMOVALS, Model
from tests.spec.record_models import RECORD_GOALS, RECORD_MODELS, RECORD_REMOVALS, RecordModel

AnyModel = Model | LogModel | RecordModel | CouncilModel

ALL_MODELS: tuple[AnyModel, ...] = (*MODELS, *RECORD_MODELS, *LOG_MODELS, *COUNCIL_MODELS)
ALL_REMOVALS = (*REMOVALS, *RECORD_REMOVALS, *LOG_REMOVALS, *COUNCIL_REMOVALS)
ALL_GOALS = (*GOALS, *RECORD_GOALS, *LOG_GOALS, *COUNCIL_GOALS)


def model_named(name: str) -> AnyModel:
    """The model of this name."""
    for model in ALL_MODELS:
        if model.name == name:
            return model
    raise LookupError(f"no model {name!r}; known: {', '.join(model.name for model in ALL_MODELS)}")
