"""The files for deployments in docs/how-to/files: what they name exists."""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import replog
from replog import metrics
from tests.cli.test_inspect import run
from tests.kit import until

FILES = Path(__file__).parents[1] / "docs" / "how-to" / "files"
METRIC = re.compile(r"\breplog_(?:bookie|logs?|cursor|machine)s?(?:_\w+)?\b")


async def served_names(directory: Path) -> set[str]:
    """The names of all samples: of a bookie with a socket, its logs and their cursors, and a machine."""

    class Once(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from metrics.collect(client.bookies)
            yield from measured.collect()
            yield from metrics.collect_machines([counter])

    options = replog.BookieOptions(listen=("tcp:127.0.0.1:0",), repair="auto")
    async with (
        replog.embed(directory, bookie_options=options) as client,
        client.run_machine("counter", replog.ReplicatedCounter) as counter,
    ):
        await counter.add(1)
        await until(lambda: "repair_under_replicated" in client.bookies[0].statistics(), 60)
        async with client.cursor("counter", "audit") as cursor:
            await cursor.receive()
            await cursor.commit()
        measured = metrics.LogMetrics(client)
        await measured.look()
        registry = CollectorRegistry()
        registry.register(Once())
        return set(METRIC.findall(generate_latest(registry).decode()))


async def test_dashboard_and_alerts_name_served_metrics(tmp_path: Path) -> None:
    served = await served_names(tmp_path)
    for name in ("grafana-dashboard.json", "prometheus-alerts.yaml"):
        named = set(METRIC.findall((FILES / name).read_text(encoding="utf-8")))
        for kind in ("bookie", "log", "cursor", "machine"):
            assert len([each for each in named if each.startswith(f"replog_{kind}_")]) >= 2, (name, kind)
        assert named - served == set(), name


async def test_page_names_all_metrics_of_logs_cursors_and_machines(tmp_path: Path) -> None:
    page = (FILES.parent / "monitoring.md").read_text(encoding="utf-8")
    for name in await served_names(tmp_path):
        kind, _, rest = name.removeprefix("replog_").partition("_")
        if kind in ("log", "cursor", "machine") and rest:
            assert f"`{rest}`" in page, f"docs/how-to/monitoring.md does not name {name}"


def test_dashboard_panels_have_their_own_places() -> None:
    dashboard = json.loads((FILES / "grafana-dashboard.json").read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells), panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_alerts_have_the_parts_required_by_prometheus() -> None:
    rules: dict[str, Any] = yaml.safe_load((FILES / "prometheus-alerts.yaml").read_text(encoding="utf-8"))
    for alert in rules["groups"][0]["rules"]:
        assert {"alert", "expr"} <= alert.keys() <= {"alert", "expr", "for"}


def environment_of_image() -> dict[str, str]:
    (line,) = re.findall(r"^ENV (.*)$", (FILES / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    return dict(each.split("=", 1) for each in line.split())


@pytest.mark.parametrize("name", ["bookie-1", "bookie-2", "bookie-3"])
def test_bookies_in_containers_are_configured(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compose = yaml.safe_load((FILES / "compose.yaml").read_text(encoding="utf-8"))
    service = compose["services"][name]
    assert service["build"] == "."
    (volume,) = service["volumes"]
    assert volume.partition(":")[0] in compose["volumes"]
    for variable, value in {**environment_of_image(), **service["environment"]}.items():
        monkeypatch.setenv(variable, value)
    status, output, errors = run(capsys, "bookie", "--show-config", "--json")
    assert status == 0, errors
    shown = json.loads(output)
    assert shown["tcp"]["advertise"]["value"] == f"{name}:3181"
    assert shown["bookie"]["data"]["value"] == volume.partition(":")[2]


def test_systemd_unit_starts_a_bookie_and_gives_it_time_to_leave() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign] # names of systemd have capitals
    unit.read(FILES / "replog-bookie.service", encoding="utf-8")
    assert re.match(r"\S+/replog bookie --config \S+$", unit["Service"]["ExecStart"])
    assert unit["Service"]["Type"] == "notify"
    assert int(unit["Service"]["TimeoutStopSec"]) > 60
