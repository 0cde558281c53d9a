"""What is asked of a view, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.connect.log import ClusterView, ConnectorDeleted, ConnectorPut
from headrace.connect.log.folding import fold
from headrace.connect.log.records import ConnectorEntry


class Unwalked(dict[str, ConnectorEntry]):
    """Entries that may be looked up, and not gone through."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all entries are gone through for one")

    items = values = keys = __iter__  # type: ignore[assignment]


def view_of(*names: str) -> ClusterView:
    view = ClusterView()
    for number, name in enumerate(names):
        config = {"connector.class": "datagen-source"}
        put = ConnectorPut(request=name, name=name, config=config)
        view, _ = fold(view, put, number)
    return view


def test_one_connector_costs_the_same_among_many() -> None:
    view = view_of("orders", "payments")
    alike = ClusterView(entries=Unwalked(view.entries))
    found = alike.connector("orders")
    assert found is not None
    assert found.name == "orders"
    assert alike.connector("others") is None


def test_deleted_connector_is_not_given() -> None:
    view, _ = fold(view_of("orders"), ConnectorDeleted(request="x", name="orders"), 1)
    assert view.connector("orders") is None
    assert "orders" in view.entries
    assert "orders" not in view.connectors()
