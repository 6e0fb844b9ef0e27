"""Which vertices share a task, and when one gets a task of its own or returns."""

from types import SimpleNamespace

from ebbflow.accounts.numbers import MESSAGE, Load
from ebbflow.runtime.task_sharing import HOLD, Cut, Merge, TaskSharing, group_plans


def chain(*names: str) -> list:
    def plan(at: int) -> SimpleNamespace:
        following = names[at + 1 : at + 2]
        edges = tuple(SimpleNamespace(to=to) for to in following)
        return SimpleNamespace(
            vertex=names[at],
            edges=edges,
            inline=names[at + 1 :],
            inline_replays=(),
            partitions=1,
        )

    return [plan(at) for at in range(len(names))]


class Driver:
    """A driver whose tasks report what a test specifies."""

    def __init__(self, *names: str) -> None:
        self.now = 0.0
        self.calls = {name: [0, 0.0, 0] for name in names}
        self.loads: dict[str, Load] = {}
        self.plans = chain(*names)
        self.groups = group_plans(self.plans)
        self.sharing = TaskSharing(self.plans, self, self.load, self.numbers, lambda name: None)

    def monotonic(self) -> float:
        return self.now

    def load(self, name: str) -> Load:
        return self.loads.get(name, Load())

    def numbers(self, name: str) -> SimpleNamespace:
        count, seconds, rows = self.calls[name]
        call = SimpleNamespace(count=count, seconds=seconds)
        return SimpleNamespace(spreads={"call": call, MESSAGE: SimpleNamespace(count=rows)})

    def second(self, rows: int = 100, **seconds_of_a_call: float) -> Cut | Merge | None:
        """A second in which vertices have ten calls and that many rows; calls take that long."""
        self.now += 1.0
        for name, seconds in seconds_of_a_call.items():
            count, before, rows_before = self.calls[name]
            self.calls[name] = [count + 10, before + 10 * seconds, rows_before + rows]
        return self.sharing.look(self.groups)


def names_of(group) -> list[str]:
    return [plan.vertex for plan in group]


def test_a_run_begins_with_all_vertices_of_a_chain_in_one_task():
    assert [names_of(group) for group in group_plans(chain("in", "map", "out"))] == [
        ["in", "map", "out"]
    ]


def test_a_slow_vertex_moves_to_its_own_task_with_the_vertices_downstream_of_it():
    driver = Driver("in", "map", "out")
    changes = [driver.second(map=0.2) for _ in range(3)]
    cut = next(change for change in changes if change is not None)
    assert isinstance(cut, Cut)
    assert names_of(cut.leaving) == ["map", "out"]


def test_a_saturated_task_is_cut_only_while_cores_are_idle():
    driver = Driver("in", "map", "out")
    driver.loads = {"in": Load(busy=1.0, idle_cores=0.0)}
    assert [driver.second(map=0.02, out=0.02) for _ in range(5)] == [None] * 5
    driver.loads = {"in": Load(busy=1.0, idle_cores=0.9)}
    changes = [driver.second(map=0.02, out=0.02) for _ in range(3)]
    assert any(isinstance(change, Cut) for change in changes)


def saturate(driver: Driver, rows: int, idle: float = 0.9, **calls: float) -> Cut | None:
    driver.loads = {driver.plans[0].vertex: Load(busy=1.0, idle_cores=idle)}
    changes = [driver.second(rows, **calls) for _ in range(5)]
    return next(filter(None, changes), None)


def test_a_few_cheap_vertices_stay_together_however_busy_they_are():
    assert saturate(Driver("in", "map", "out"), 350_000, map=1e-6, out=1e-6) is None


def test_many_cheap_vertices_are_cut_in_the_middle():
    names = [f"v{number}" for number in range(8)]
    cut = saturate(Driver(*names), 100_000, **dict.fromkeys(names, 1e-6))
    assert isinstance(cut, Cut)
    assert names_of(cut.leaving) == names[4:]
    assert saturate(Driver(*names), 100_000, idle=0.4, **dict.fromkeys(names, 1e-6)) is None


def test_equally_expensive_vertices_are_cut_until_each_has_its_own_task():
    cut = saturate(Driver("a", "b", "c"), 333, a=0.033, b=0.033, c=0.033)
    assert isinstance(cut, Cut)
    assert len(cut.leaving) in (1, 2)
    again = saturate(Driver("b", "c"), 500, idle=0.5, b=0.05, c=0.05)
    assert isinstance(again, Cut)


def test_a_vertex_returns_only_when_both_tasks_have_little_to_do():
    driver = Driver("in", "map", "out")
    cut = next(filter(None, [driver.second(map=0.2) for _ in range(3)]))
    driver.groups = [tuple(p for p in cut.group if p not in cut.leaving), cut.leaving]
    assert driver.second(map=0.001) is None
    driver.now += HOLD
    merge = driver.second(map=0.001)
    assert isinstance(merge, Merge)
    assert (names_of(merge.group), names_of(merge.into)) == (["map", "out"], ["in"])


def test_a_vertex_that_only_replays_run_inline_moves_to_its_own_task_for_good():
    driver = Driver("in", "map", "out")
    driver.plans[0].inline_replays = ("map",)
    driver.sharing = TaskSharing(
        driver.plans, driver, driver.load, driver.numbers, lambda name: None
    )
    cut = next(change for change in [driver.second() for _ in range(3)] if change is not None)
    assert isinstance(cut, Cut)
    assert names_of(cut.leaving) == ["map", "out"]
    driver.groups = [tuple(driver.plans[:1]), cut.leaving]
    driver.now += 10 * HOLD
    assert [driver.second() for _ in range(3)] == [None] * 3
