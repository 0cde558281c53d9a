"""A start compares the state that is there with the topology, and refuses or moves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import PartitionCountError, StateError
from headrace.keys import decode_key
from headrace.runtime.standing import operator_notes
from headrace.runtime.state.steps import StateStep
from headrace.topology.shapes import shape_changes, state_shape

if TYPE_CHECKING:
    from headrace.protocol.transactions import CommitRecord
    from headrace.runtime.job_plan import JobPlan
    from headrace.runtime.state.home import StateHome
    from headrace.serdes import Serde

__all__ = ["Migrations", "StateMigration", "other_partitions", "settled_record"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMigration:
    r"""What a start does with the state of an operator that has changed.

    Parameters
    ----------
    to
        Name of the operator that goes on with it.
    function
        Takes key and value of an entry, gives the new value; None drops the entry.  Without it
        the values stay as they are.
    old, new
        Serdes of the values before and after; without them the function takes and gives bytes.

    Examples
    --------
    >>> from headrace import serdes
    >>> migration = StateMigration(
    ...     to="total", function=lambda key, cents: cents / 100, old=serdes.int, new=serdes.float
    ... )
    >>> serdes.float.deserialize(migration.change(b"\x05\x01k", serdes.int.serialize(250)))
    2.5
    """

    to: str
    function: Callable[[Any, Any], Any] | None = None
    old: Serde[Any] | None = None
    new: Serde[Any] | None = None

    def change(self, key: bytes, value: bytes) -> bytes | None:
        """Give the new value of an entry."""
        if self.function is None:
            return value
        found: Any = value if self.old is None else self.old.deserialize(value)
        result = self.function(_readable(key), found)
        if result is None:
            return None
        return bytes(result) if self.new is None else self.new.serialize(result)


Migrations = Mapping[str, str | StateMigration]
"""What becomes of the state of operators, by their old names; text is the new name alone."""


def settled_record(
    home: StateHome, record: CommitRecord, plan: JobPlan, migrations: Migrations
) -> CommitRecord:
    """Compare the last commit with the topology that is to go on from it.

    State is moved or dropped where the settings say so, as a committed step of its own.

    Raises
    ------
    PartitionCountError
        The job's state has another number of partitions.
    StateError
        The topology lacks an operator that has state, or keeps it in another form.
    """
    partitions = plan.settings.partitions
    if record.batch and record.partitions not in (0, partitions):
        raise other_partitions(plan.job, record.partitions, partitions)
    shapes = {operator.name: state_shape(operator) for operator in plan.topology.stateful}
    wanted = {
        old: StateMigration(to=new) if isinstance(new, str) else new
        for old, new in migrations.items()
    }
    for migration in wanted.values():
        if migration.to not in shapes:
            raise StateError(
                f"migrate= moves state to '{migration.to}', and job '{plan.job}' has no such"
                f" operator: it has {', '.join(shapes) or 'none with state'}"
            )
    differences = _differences(record, shapes)
    moves = {old: wanted[old] for old in wanted if old in differences}
    losses = [name for name in differences if name not in moves]
    if losses and not plan.settings.allow_state_loss:
        raise _refusal(record, shapes, {name: differences[name] for name in losses})
    settled = msgspec.structs.replace(
        record,
        partitions=partitions,
        stores=sorted(shapes),
        shapes=shapes,
        operators=operator_notes(plan.topology),
    )
    if not differences:
        return settled
    step = StateStep(home, record, partitions)
    for old, migration in moves.items():
        step.move(old, migration.to, change=migration.change)
    for name in losses:
        step.drop(name)
    return step.commit(settled)


def other_partitions(job: str, there: int, wanted: int) -> PartitionCountError:
    """Say that state cannot be used with another number of partitions as it is."""
    return PartitionCountError(
        f"job '{job}' has its state in {there} partitions, but was started with {wanted}",
        hint=f"start it with partitions={there} (--partitions {there}), or move its state first:"
        f" headrace job rescale {job} --partitions {wanted}",
    )


def _differences(record: CommitRecord, shapes: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Tell which operators with entries in their stores are gone or keep another kind of state."""
    found: dict[str, str] = {}
    for store in sorted({state.store for state in record.states if state.count}):
        if store not in shapes:
            found[store] = "is gone"
        elif store in record.shapes:
            changes = shape_changes(record.shapes[store], shapes[store])
            if changes:
                found[store] = "has changed: " + ", ".join(changes)
    return found


def _refusal(
    record: CommitRecord, shapes: Mapping[str, Mapping[str, str]], losses: Mapping[str, str]
) -> StateError:
    keys = dict.fromkeys(losses, 0)
    for state in record.states:
        if state.store in keys:
            keys[state.store] += state.count
    lines = [f"  {name} {what} ({keys[name]:,} entries)" for name, what in losses.items()]
    added = [name for name in shapes if name not in record.stores]
    lines += [f"  {name} is new" for name in added]
    return StateError(
        f"job '{record.job}' has state of {', '.join(losses)} that its topology cannot use:\n"
        + "\n".join(lines),
        hint="give the operator its old name and form (name=...), move the state with"
        ' StreamJob(..., migrate={"OLD": "NEW"}), or drop it with --allow-state-loss'
        " (allow_state_loss=True)",
    )


def _readable(key: bytes) -> Any:
    try:
        return decode_key(key)
    except Exception:  # noqa: BLE001 - keys of windows and joins are more than a record's key
        return key
