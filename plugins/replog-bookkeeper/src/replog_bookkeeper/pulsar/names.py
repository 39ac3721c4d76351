"""Names of topics, and where Pulsar keeps what it knows of them."""

from __future__ import annotations

import re
from typing import Self
from urllib.parse import quote_plus, unquote_plus

import attrs

from replog.errors import ConfigError

MANAGED_LEDGERS = "/managed-ledgers"
_PARTITIONED = "/admin/partitioned-topics"
_SCHEME, _DOMAIN = "persistent://", "persistent"
_PARTITION = re.compile(r"-partition-(\d+)\Z", re.ASCII)


@attrs.frozen
class Namespace:
    """A tenant and its namespace; the namespace of old names has a cluster before it: "cluster/namespace"."""

    tenant: str
    namespace: str

    def __str__(self) -> str:
        return f"{_SCHEME}{self.tenant}/{self.namespace}"

    @property
    def node(self) -> str:
        """The node above those of its topics."""
        return f"{MANAGED_LEDGERS}/{self.tenant}/{self.namespace}/{_DOMAIN}"


@attrs.frozen
class TopicName:
    """The name of a persistent topic, or of a partition of one; prints as it is written."""

    namespace: Namespace
    topic: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads "persistent://tenant/namespace/topic". Raises `ConfigError`."""
        words = text.removeprefix(_SCHEME).split("/", 3)
        if not text.startswith(_SCHEME) or len(words) < 3 or not all(words):
            raise ConfigError(f"{text!r} is not the name of a topic: persistent://TENANT/NAMESPACE/TOPIC")
        return cls(Namespace(words[0], "/".join(words[1:-1])), words[-1])

    @classmethod
    def of_node(cls, namespace: Namespace, name: str) -> Self:
        """The topic that a node of this name below the namespace's is of."""
        return cls(namespace, decoded(name))

    def __str__(self) -> str:
        return f"{self.namespace}/{self.topic}"

    @property
    def managed_ledger(self) -> str:
        """The name of its managed ledger, which its ledgers have in their records."""
        return self.node.removeprefix(f"{MANAGED_LEDGERS}/")

    @property
    def node(self) -> str:
        """The node of its managed ledger."""
        return f"{self.namespace.node}/{_encoded(self.topic)}"

    @property
    def partitioned_node(self) -> str:
        """The node that says how many partitions it has."""
        return f"{_PARTITIONED}/{self.namespace.tenant}/{self.namespace.namespace}/{_DOMAIN}/{_encoded(self.topic)}"

    def partition(self, number: int) -> TopicName:
        """One of its partitions, which is a topic of its own."""
        return attrs.evolve(self, topic=f"{self.topic}-partition-{number}")

    @property
    def partition_of(self) -> tuple[str, int] | None:
        """The topic that it is a partition of, and its number; None if it is not a partition."""
        found = _PARTITION.search(self.topic)
        return None if found is None else (self.topic[: found.start()], int(found[1]))


def parse_namespace(text: str) -> Namespace | None:
    """Reads "persistent://tenant/namespace"; None if it is something else, as the name of a topic."""
    words = text.removeprefix(_SCHEME).split("/")
    return Namespace(*words) if text.startswith(_SCHEME) and len(words) == 2 and all(words) else None


def _encoded(name: str) -> str:
    # As Java's URLEncoder, which leaves other signs than Python's function.
    return quote_plus(name, safe="*").replace("~", "%7E")


def decoded(name: str) -> str:
    """A topic's or a subscription's name, from that of its node."""
    return unquote_plus(name)
