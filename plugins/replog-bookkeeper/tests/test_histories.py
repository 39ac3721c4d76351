"""Mixed histories, judged by both kinds of readers (`histories.py`)."""

import pytest
from histories import run_histories
from java_bookies import Cluster

pytestmark = pytest.mark.needs_bookkeeper


def test_both_kinds_agree_on_bookies_of_both_kinds(mixed: Cluster) -> None:
    run_histories(mixed, range(300, 305))


@pytest.mark.long(is_sampled=False)
def test_both_kinds_agree_on_many_histories(cluster: Cluster) -> None:
    run_histories(cluster, range(300))


@pytest.mark.long(is_sampled=False)
def test_both_kinds_agree_on_many_with_bookies_of_both_kinds(mixed: Cluster) -> None:
    run_histories(mixed, range(305, 600))
