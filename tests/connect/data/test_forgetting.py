"""What is left of a connector on its brokers once it is forgotten: nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.client import Admin, Client
from headrace.connect.data.positions import (
    EngineSettings,
    PositionChanges,
    forget_positions,
    read_positions,
)
from tests.clusters import Cluster


def test_topics_and_groups_of_a_forgotten_connector_are_gone_and_those_of_others_stay(
    cluster: Cluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    name = make_topic()
    settings = EngineSettings(namesrv=cluster.namesrv, folder=tmp_path)
    with Client(cluster.namesrv) as client:
        admin = Admin(client)
        for connector in (name, f"{name}/7", f"{name}-0"):
            queue = f"{name}@{client.queues(name)[0].broker}@0"
            PositionChanges(client, connector, settings).commit({queue: 1})
        for kept_as in (name, f"{name}/7"):
            forget_positions(client, kept_as)
            forget_positions(client, kept_as)
            assert read_positions(client, kept_as) == {}
        assert not {f"connect-{name}-0"} & set(admin.groups())
        # A connector whose name begins alike has its own.
        assert read_positions(client, f"{name}-0") != {}
        left = [one for one in admin.topics() if one.startswith(f"connect-{name}-")]
        assert f"connect-{name}-0-0-commitTopic" in left
        assert all(one.startswith(f"connect-{name}-0-0-") for one in left)
