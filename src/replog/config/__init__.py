"""Configuration: URLs of backends, the options of clients and bookies, and reading both from files and the environment.

Data from outside enters here and nowhere else: `structure` makes an attrs class of texts and numbers, and refuses what it does
not know.
"""

from replog.config.bookie import BookieOptions
from replog.config.checks import (
    Check,
    Checked,
    FaultsError,
    at_least,
    check_field,
    check_names,
    check_number,
    check_seconds,
    check_types,
    names_in,
    option,
    positive,
)
from replog.config.client import ClientOptions
from replog.config.labels import check_labels, fault_of_labels, parse_labels
from replog.config.loading import ledger_password, load, read_toml
from replog.config.parsing import Options, structure
from replog.config.urls import BackendURL

__all__ = [
    "BackendURL",
    "BookieOptions",
    "Check",
    "Checked",
    "ClientOptions",
    "FaultsError",
    "Options",
    "at_least",
    "check_field",
    "check_labels",
    "check_names",
    "check_number",
    "check_seconds",
    "check_types",
    "fault_of_labels",
    "ledger_password",
    "load",
    "names_in",
    "option",
    "parse_labels",
    "positive",
    "read_toml",
    "structure",
]
