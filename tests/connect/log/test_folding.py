"""The order of the log decides, and one filter hides what is deleted."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, strategies as st

from headrace.connect.lifecycle import Phase, Target
from headrace.connect.log import (
    Applied,
    AssignmentMade,
    ClusterView,
    ConnectorDeleted,
    ConnectorEntry,
    LeftoversGone,
    Purged,
    Record,
    Rejected,
    RestartAsked,
    StatusSet,
    TargetSet,
    TasksPut,
    TasksWanted,
    TopicsReset,
    TopicUsed,
    fold,
)
from headrace.connect.naming import UnitId
from tests.connect.log.samples import folded, put, records, status


def entry(view: ClusterView, name: str = "a") -> ConnectorEntry:
    found = view.connector(name)
    assert found is not None
    return found


def reason(outcome: object) -> str:
    assert isinstance(outcome, Rejected)
    assert outcome.message
    return outcome.reason


def deletion(name: str = "a", request: str = "") -> Record:
    return ConnectorDeleted(request=request, name=name)


def tasks(version: int, *configs: dict[str, str], name: str = "a") -> Record:
    return TasksPut(name=name, config_version=version, configs=list(configs))


def said(phase: Phase, read: int, *, gone: bool = False, worker: str = "w1") -> StatusSet:
    found = status("a", None, 0, phase, gone=gone, worker=worker)
    return msgspec.structs.replace(found, read=read)


def test_a_state_that_was_held_up_does_not_turn_a_story_back() -> None:
    claim, runs = said(Phase.PENDING, 0), said(Phase.RUNNING, 1)
    view, outcomes = folded(put("a"), claim, runs, claim, runs)
    assert [reason(one) for one in outcomes[3:]] == ["behind", "behind"]
    assert entry(view).healthy
    view, outcomes = folded(said(Phase.STOPPED, 4, gone=True), runs, view=view)
    assert reason(outcomes[1]) == "behind"
    assert list(view.alive()) == []
    # Nor does one that a name's last life has left on its way.
    view, outcomes = folded(deletion(), put("a", "again"), said(Phase.RUNNING, 6), view=view)
    assert reason(outcomes[2]) == "behind"
    assert list(view.alive()) == []


def test_a_worker_speaks_knowing_what_others_have_said_of_the_same_unit() -> None:
    first, second = said(Phase.PENDING, 0), said(Phase.PENDING, 0, worker="w2")
    view, outcomes = folded(put("a"), first, second)
    assert reason(outcomes[2]) == "behind"
    again = said(Phase.PENDING, 2, worker="w2")
    view, outcomes = folded(again, view=view)
    assert outcomes == [Applied(3)]
    assert [one.worker for one in view.alive()] == ["w1", "w2"]


@pytest.mark.requirement(1)
def test_a_config_that_was_put_can_be_read() -> None:
    view, outcomes = folded(put("a", x="1"))
    assert outcomes == [Applied(0)]
    assert entry(view).config == {"x": "1"}
    assert entry(view).version == 1


@pytest.mark.requirement(2)
def test_a_put_makes_the_tasks_of_that_connector_due_and_of_no_other() -> None:
    view, _ = folded(put("a"), put("b"), tasks(1, {}), tasks(1, {}, name="b"))
    assert [one for one in "ab" if entry(view, one).tasks_due] == []
    view, _ = folded(put("a", x="2"), view=view)
    assert [one for one in "ab" if entry(view, one).tasks_due] == ["a"]
    view, _ = folded(tasks(2, {}), view=view)
    assert not entry(view).tasks_due


def test_a_wish_for_other_tasks_is_fulfilled_by_an_answer_that_was_asked_for_after_it() -> None:
    view, _ = folded(put("a"), TasksPut(name="a", config_version=1, configs=[{}], asked=0))
    assert view.entries["a"].tasks_wanted == -1
    view, _ = folded(TasksWanted(name="a"), TasksWanted(name="a"), view=view)
    early, late = (
        TasksPut(name="a", config_version=1, configs=[{}], asked=asked) for asked in (2, 3)
    )
    view, _ = folded(early, view=view)
    assert view.entries["a"].tasks_wanted == 3
    view, _ = folded(late, view=view)
    assert view.entries["a"].tasks_wanted == -1
    # The tasks are the same, so they run on.
    assert [task.generation for task in view.entries["a"].tasks] == [1]


@pytest.mark.requirement(3)
def test_task_configs_are_stored_with_numbers_from_0() -> None:
    view, _ = folded(put("a"), tasks(1, {"n": "0"}, {"n": "1"}, {"n": "2"}))
    assert [one.config["n"] for one in entry(view).tasks] == ["0", "1", "2"]
    assert [unit.task for unit in entry(view).units()] == [None, 0, 1, 2]


@pytest.mark.requirement(4)
@given(st.lists(records(), max_size=25))
def test_workers_that_read_the_same_log_see_the_same(given_records: list[Record]) -> None:
    assert folded(*given_records) == folded(*given_records)


@pytest.mark.requirement(6)
def test_a_put_overwrites_a_config_and_a_mark() -> None:
    view, _ = folded(put("a", x="1"), put("a", x="2"))
    assert entry(view).config == {"x": "2"}
    view, outcomes = folded(deletion(), put("a", expected=0, x="3"), tasks(4, {}), view=view)
    assert entry(view).config == {"x": "3"}
    assert isinstance(outcomes[1], Applied)
    assert entry(view).version == 3


@pytest.mark.requirement(7)
@pytest.mark.requirement(8)
def test_a_delete_leaves_a_mark_on_connector_and_tasks() -> None:
    view, _ = folded(put("a"), tasks(1, {"n": "0"}, {"n": "1"}), deletion())
    raw = view.entries["a"]
    assert raw.deleted
    assert [task.deleted for task in raw.tasks] == [True, True]


def test_what_a_deleted_connector_had_committed_is_known_until_it_is_removed() -> None:
    delete = ConnectorDeleted(request="", name="a", forget=True)
    view, _ = folded(put("a", x="1"), delete, put("a", x="2"), delete, put("a", x="3"))
    assert entry(view).kept_as == "a/4"
    left = [(one.kept_as, one.config["x"]) for one in entry(view).leftovers]
    assert left == [("a", "1"), ("a/2", "2")]
    view, _ = folded(LeftoversGone(name="a", kept_as=["a"]), delete, Purged(names=["a"]), view=view)
    assert [one.kept_as for one in view.entries["a"].leftovers] == ["a/2", "a/4"]
    gone = LeftoversGone(name="a", kept_as=["a/2", "a/4"])
    view, _ = folded(gone, Purged(names=["a"]), view=view)
    assert view.entries == {}


def test_what_is_kept_is_found_again_under_its_name_and_not_purged() -> None:
    forget = ConnectorDeleted(request="", name="a", forget=True)
    view, _ = folded(put("a"), deletion(), put("a"))
    assert (entry(view).kept_as, entry(view).leftovers) == ("a", ())
    view, _ = folded(forget, put("a"), deletion(), Purged(names=["a"]), put("a"), view=view)
    assert entry(view).kept_as == "a/4"


@pytest.mark.requirement(12)
def test_no_read_shows_what_is_deleted() -> None:
    view, _ = folded(put("a"), tasks(1, {}), put("b"), deletion())
    assert set(view.connectors()) == {"b"}
    assert view.connector("a") is None
    assert {unit.connector for unit in view.units()} == {"b"}
    assert list(view.entries["a"].units()) == []


@pytest.mark.requirement(14)
@pytest.mark.parametrize(
    "ends", [deletion(), TargetSet(request="", name="a", target=Target.STOPPED)]
)
def test_an_entry_that_is_deleted_or_stopped_wants_no_copy_whoever_asks(ends: Record) -> None:
    view, _ = folded(put("a"), tasks(1, {}), ends)
    raw = view.entries["a"]
    assert list(raw.units()) == []
    assert not raw.active
    assert not raw.healthy


@pytest.mark.requirement(13)
def test_a_purge_changes_nothing_that_can_be_seen() -> None:
    view, _ = folded(put("a"), put("b"), deletion())
    purged, outcomes = folded(Purged(names=["a", "b", "c"]), view=view)
    assert isinstance(outcomes[0], Applied)
    assert purged.connectors() == view.connectors()
    assert set(purged.entries) == {"b"}


def test_a_mark_behind_which_a_copy_may_live_is_not_purged() -> None:
    view, _ = folded(put("a"), status("a", None, 0, Phase.RUNNING), deletion())
    kept, outcomes = folded(Purged(names=["a"]), view=view)
    assert reason(outcomes[0]) == "in-use"
    assert set(kept.entries) == {"a"}
    view, _ = folded(status("a", None, 0, Phase.STOPPED, gone=True), Purged(names=["a"]), view=view)
    assert view.entries == {}


def test_of_two_that_create_the_same_name_the_first_in_the_log_wins() -> None:
    view, outcomes = folded(put("a", "r1", expected=0, x="1"), put("a", "r2", expected=0, x="2"))
    assert isinstance(outcomes[0], Applied)
    assert reason(outcomes[1]) == "exists"
    assert entry(view).config == {"x": "1"}


def test_of_two_that_change_one_version_the_first_wins() -> None:
    view, outcomes = folded(put("a"), put("a", expected=1, x="1"), put("a", expected=1, x="2"))
    assert reason(outcomes[2]) == "version"
    assert entry(view).config == {"x": "1"}


@pytest.mark.parametrize(
    "record",
    [
        deletion("z"),
        put("z", expected=3),
        TargetSet(request="", name="z", target=Target.PAUSED),
        tasks(1, name="z"),
        RestartAsked(request="", name="z"),
        status("z", None, 0, Phase.RUNNING),
        TopicUsed(name="z", topic="t"),
        TopicsReset(request="", name="z"),
        RestartAsked(request="", name="a", tasks=[7]),
    ],
)
def test_what_is_about_nothing_that_exists_is_void(record: Record) -> None:
    before, _ = folded(put("a"))
    after, outcomes = folded(record, view=before)
    assert reason(outcomes[0]) == "missing"
    assert after.entries == before.entries


def test_a_request_that_was_sent_twice_counts_once() -> None:
    view, outcomes = folded(put("a", "r1"), deletion(request="r2"), put("a", "r1"))
    assert reason(outcomes[2]) == "duplicate"
    assert view.connector("a") is None


def test_tasks_of_an_older_config_are_void() -> None:
    view, outcomes = folded(put("a"), put("a", x="2"), tasks(1, {"old": "1"}))
    assert reason(outcomes[2]) == "stale"
    assert entry(view).tasks == ()


def test_the_same_tasks_again_restart_nothing() -> None:
    view, _ = folded(put("a"), tasks(1, {"n": "0"}))
    again, outcomes = folded(tasks(1, {"n": "0"}), view=view)
    assert isinstance(outcomes[0], Applied)
    assert entry(again).tasks == entry(view).tasks


@pytest.mark.requirement(31)
def test_other_tasks_for_the_same_config_are_new_copies_all_of_them() -> None:
    view, _ = folded(put("a"), tasks(1, {"n": "0"}), tasks(1, {"n": "0"}, {"n": "1"}))
    assert [task.generation for task in entry(view).tasks] == [2, 2]


def test_pause_and_resume_make_no_new_copies() -> None:
    view, _ = folded(put("a"), tasks(1, {}))
    wanted = list(view.units())
    for target in (Target.PAUSED, Target.RUNNING):
        view, _ = folded(TargetSet(request="", name="a", target=target), view=view)
        assert list(view.units()) == wanted


def test_a_stopped_connector_keeps_its_config_and_is_asked_for_tasks_when_it_resumes() -> None:
    view, _ = folded(put("a", x="1"), tasks(1, {}))
    view, _ = folded(TargetSet(request="", name="a", target=Target.STOPPED), view=view)
    assert entry(view).config == {"x": "1"}
    assert not entry(view).tasks_due
    view, _ = folded(TargetSet(request="", name="a", target=Target.RUNNING), view=view)
    assert entry(view).tasks_due
    assert entry(view).generation == 3


def test_a_restart_makes_new_copies_of_what_it_names() -> None:
    view, _ = folded(put("a"), tasks(1, {}, {}))
    one, _ = folded(RestartAsked(request="", name="a", connector=False, tasks=[1]), view=view)
    assert list(one.units()) == [UnitId("a", None, 0), UnitId("a", 0, 1), UnitId("a", 1, 2)]
    everything, _ = folded(RestartAsked(request="", name="a", tasks="all"), view=view)
    assert {unit.generation for unit in everything.units()} == {2}


def test_a_restart_of_what_failed_leaves_the_rest_alone() -> None:
    view, _ = folded(put("a"), tasks(1, {}, {}), status("a", 1, 1, Phase.ERROR, cause="x"))
    restart = RestartAsked(request="", name="a", tasks="all", only_failed=True)
    view, _ = folded(restart, view=view)
    assert list(view.units()) == [UnitId("a", None, 0), UnitId("a", 0, 1), UnitId("a", 1, 3)]


@pytest.mark.requirement(18)
def test_a_failed_task_stays_failed_with_its_cause_until_a_new_copy_is_asked_for() -> None:
    view, _ = folded(put("a"), tasks(1, {}), status("a", 0, 1, Phase.ERROR, cause="no disk"))
    now = entry(view).status(0)
    assert now is not None
    assert now.cause is not None
    assert now.cause.summary == "no disk"
    assert entry(view).failed(0)
    view, _ = folded(RestartAsked(request="", name="a", tasks="failed", connector=False), view=view)
    assert entry(view).status(0) is None


@pytest.mark.requirement(28)
def test_a_connector_is_healthy_only_while_the_wanted_copy_of_it_runs() -> None:
    view, _ = folded(put("a"))
    assert not entry(view).healthy
    view, _ = folded(status("a", None, 0, Phase.RUNNING), view=view)
    assert entry(view).healthy
    failed, _ = folded(status("a", None, 0, Phase.ERROR), view=view)
    assert not entry(failed).healthy
    changed, _ = folded(put("a", x="2"), view=view)
    assert not entry(changed).healthy


def test_an_old_copy_does_not_speak_for_a_new_one() -> None:
    view, _ = folded(
        put("a"),
        RestartAsked(request="", name="a"),
        status("a", None, 1, Phase.RUNNING),
        status("a", None, 0, Phase.ERROR, gone=True),
    )
    assert entry(view).healthy


@pytest.mark.requirement(49)
def test_a_copy_counts_as_alive_until_it_is_proven_gone_whatever_happens_to_its_name() -> None:
    view, _ = folded(put("a"), tasks(1, {}), status("a", 0, 1, Phase.RUNNING))
    view, _ = folded(deletion(), put("a"), tasks(2, {}), view=view)
    assert [one.unit for one in view.alive()] == [UnitId("a", 0, 1)]
    assert [one.unit for one in view.alive("w1")] == [UnitId("a", 0, 1)]
    assert list(view.alive("w2")) == []
    view, _ = folded(status("a", 0, 1, Phase.STOPPED, gone=True), view=view)
    assert list(view.alive()) == []


@pytest.mark.requirement(39)
def test_a_copy_that_is_stopping_is_not_forgotten_before_it_is_gone() -> None:
    view, _ = folded(put("a"), tasks(1, {}), status("a", 0, 1, Phase.RUNNING))
    stop = TargetSet(request="", name="a", target=Target.STOPPED)
    view, _ = folded(stop, status("a", 0, 1, Phase.STOPPING), view=view)
    assert [one.phase for one in view.alive()] == [Phase.STOPPING]


@pytest.mark.defect(11)
def test_a_name_used_again_inherits_no_state_and_no_topics() -> None:
    view, _ = folded(
        put("a"),
        tasks(1, {}),
        status("a", None, 0, Phase.ERROR, cause="old"),
        status("a", 0, 1, Phase.ERROR, cause="old", gone=True),
        TopicUsed(name="a", topic="t"),
        deletion(),
        put("a"),
        tasks(2, {}),
    )
    assert entry(view).status() is None
    assert entry(view).status(0) is None
    assert entry(view).topics == ()
    assert entry(view).created == 6
    assert entry(view).story.history == ()


def test_the_latest_states_of_a_unit_are_kept_and_no_more() -> None:
    view, _ = folded(put("a"))
    for number in range(50):
        phase = Phase.ERROR if number % 2 else Phase.RUNNING
        view, _ = folded(status("a", None, 0, phase, cause=str(number)), view=view)
    history = entry(view).story.history
    assert len(history) == 20
    assert history[-1].cause is not None
    assert history[-1].cause.summary == "49"


def test_topics_are_listed_once_and_can_be_reset() -> None:
    used = [TopicUsed(name="a", topic=one) for one in ("t1", "t2", "t1")]
    view, _ = folded(put("a"), *used)
    assert entry(view).topics == ("t1", "t2")
    view, _ = folded(TopicsReset(request="", name="a"), view=view)
    assert entry(view).topics == ()


def assignment(number: int, **workers: str) -> Record:
    return AssignmentMade(generation=number, log_position=0, connectors=workers)


def test_of_two_assignments_on_the_same_one_the_first_wins() -> None:
    view, outcomes = folded(put("a"), assignment(1, a="w1"), assignment(1, a="w2"))
    assert reason(outcomes[2]) == "stale"
    assert view.worker_of("a") == "w1"


@pytest.mark.requirement(53)
def test_what_comes_to_another_worker_is_a_new_copy_and_the_rest_is_not() -> None:
    view, _ = folded(
        put("a"), put("b"), assignment(1, a="w1", b="w1"), assignment(2, a="w2", b="w1")
    )
    assert [unit.generation for unit in view.units()] == [3, 2]


def test_workers_of_tasks_are_known_by_number() -> None:
    made = AssignmentMade(generation=1, log_position=0, tasks={"a": ["w1", ""]})
    view, _ = folded(put("a"), tasks(1, {}, {}), made)
    assert [view.worker_of("a", number) for number in (0, 1, 2)] == ["w1", None, None]


@given(st.lists(records(), max_size=30))
def test_the_sum_that_a_compaction_leaves_makes_the_same_view(given_records: list[Record]) -> None:
    view, _ = folded(*given_records)
    kept = view.kept()
    assert len(kept) <= max(1, len(given_records))
    again = ClusterView()
    for number, one in enumerate(kept):
        again, outcome = fold(again, one, view.position - len(kept) + 1 + number)
        assert isinstance(outcome, Applied)
    assert again.entries == view.entries
    assert again.assignment == view.assignment
    assert again.recent == view.recent


@given(st.lists(records(), max_size=30), st.integers(0, 30))
def test_a_compaction_that_was_broken_off_leaves_the_same_view(
    given_records: list[Record], left: int
) -> None:
    """The oldest records are removed last: so some of them stand before the sums."""
    view, _ = folded(*given_records)
    again, _ = folded(*given_records[:left])
    for position, one in enumerate(view.kept(), len(given_records)):
        again, outcome = fold(again, one, position)
        assert isinstance(outcome, Applied)
    assert again.entries == view.entries
    assert again.assignment == view.assignment
    assert again.recent == view.recent


@given(st.lists(records(), max_size=30))
def test_who_has_read_everything_learns_nothing_from_a_compaction(
    given_records: list[Record],
) -> None:
    view, _ = folded(*given_records)
    again = view
    for position, one in enumerate(view.kept(), len(given_records)):
        again, _ = fold(again, one, position)
    assert (again.entries, again.assignment, again.recent) == (
        view.entries,
        view.assignment,
        view.recent,
    )


@given(st.lists(records(), max_size=30))
def test_no_copy_is_wanted_twice_and_generations_only_rise(given_records: list[Record]) -> None:
    view = ClusterView()
    seen: dict[tuple[str, int | None], int] = {}
    for position, record in enumerate(given_records):
        view, _ = fold(view, record, position)
        units = list(view.units())
        assert len({(unit.connector, unit.task) for unit in units}) == len(units)
        for unit in units:
            key = (unit.connector, unit.task)
            assert seen.get(key, 0) <= unit.generation <= position
            seen[key] = unit.generation


@given(st.lists(records(), max_size=30))
def test_only_the_end_of_a_copy_takes_it_from_those_that_may_live(
    given_records: list[Record],
) -> None:
    view = ClusterView()
    for position, record in enumerate(given_records):
        before = {(one.unit, one.worker) for one in view.alive()}
        view, _ = fold(view, record, position)
        after = {(one.unit, one.worker) for one in view.alive()}
        if isinstance(record, StatusSet):
            assert before - after <= {(record.unit, record.worker)}
        else:
            assert before == after
