"""What a seed stands for: who lives in its world, what they will do, and what befalls them."""

from random import Random
from typing import Literal

from msgspec import Struct

from faults.simulation.handlers import Step

Mood = Literal["calm", "lossy", "cuts", "outage", "violent"]
Size = Literal["small", "large", "ticking"]  # the last is a small one with a schedule
End = Literal["stop", "hurry", "cancel", "kill"]
Act = Literal["cancel", "force", "retry", "pause"]
Blow = Literal["pause", "cut"]

MOODS: tuple[Mood, ...] = (
    "calm",
    "lossy",
    "lossy",
    "cuts",
    "cuts",
    "outage",
    "violent",
    "violent",
    "violent",
)
QUEUES = ("a", "b")
ENDS: tuple[End, ...] = ("stop", "stop", "hurry", "cancel")
VIOLENT_ENDS: tuple[End, ...] = (*ENDS, "kill", "kill", "kill", "kill")
ACTS: tuple[Act, ...] = ("cancel", "force", "retry", "pause")
BLOWS: tuple[Blow, ...] = ("pause", "cut")
WORDS = (
    *["quick", "sleep", "sleep", "sleep"] * 3,
    *["fail", "later", "snooze", "cancel", "give up", "progress", "checkpoint", "stubborn", "tidy"],
)


class Accident(Struct, frozen=True):
    """Something that befalls a worker's process or its line."""

    at: float
    what: Blow
    seconds: float


class Stint(Struct, frozen=True):
    """One process of a worker, from its start to its end."""

    seconds: float
    end: End
    queues: tuple[str, ...] | None
    concurrency: int
    accidents: tuple[Accident, ...] = ()


class Order(Struct, frozen=True):
    """A job to be enqueued, `after` so many seconds."""

    after: float
    steps: tuple[Step, ...]
    task: str
    queue: str
    priority: int
    delay: float
    timeout: float | None
    expires: float | None


class Intervention(Struct, frozen=True):
    """What an operator does, after so many seconds, to one of the jobs that are there by then, or to a queue."""

    after: float
    what: Act
    which: float
    seconds: float


class Plan(Struct, frozen=True, kw_only=True):
    """A world before it begins. After `until` nothing bad happens any more."""

    seed: int
    mood: Mood
    lease: float
    poll: float
    until: float
    loss: float
    twice: float
    deaf: float
    slow: float
    outages: tuple[tuple[float, float], ...]
    clock_steps: tuple[tuple[float, int], ...]
    careers: tuple[tuple[Stint, ...], ...]
    orders: tuple[tuple[Order, ...], ...]
    interventions: tuple[Intervention, ...]
    last_concurrency: int
    ticks: bool

    @property
    def blocks(self) -> bool:
        """Whether handlers keep a whole process from running."""
        return any(step[0] == "block" for orders in self.orders for order in orders for step in order.steps)

    @property
    def roomy(self) -> bool:
        """Whether in the end there is a place for every job, so that none has to wait for another."""
        jobs = sum(len(orders) for orders in self.orders)
        return not self.blocks and not self.ticks and self.last_concurrency >= jobs


def plan_of(seed: int, size: Size = "small") -> Plan:
    """The plan that this seed stands for."""
    random = Random(f"{size} world {seed}")
    mood = random.choice(MOODS)
    large = size == "large"
    until = random.uniform(5, 40) if not large else random.uniform(60, 180)
    disturbed = mood in ("lossy", "violent")
    outages: tuple[tuple[float, float], ...] = ()
    if mood == "outage":
        outages = ((random.uniform(1, 20), random.choice([15.0, 45.0, 45.0, 300.0])),)
        until = max(until, sum(outages[0]))
    lease = random.choice([10.0, 30.0])
    return Plan(
        seed=seed,
        mood=mood,
        lease=lease,
        poll=random.choice([1.0, 4.0, 10.0]),
        until=until,
        loss=random.choice([0.02, 0.2]) if disturbed else 0.0,
        twice=random.choice([0.0, 0.2]) if disturbed else 0.0,
        deaf=random.choice([0.0, 0.3, 1.0]),
        slow=random.choice([0.002, 0.05, 0.05, 0.5, 12.0 if lease == 30 else 0.2]),
        outages=outages,
        clock_steps=_clock_steps(random, until) if mood == "violent" else (),
        careers=tuple(
            _career(random, mood, until, lease) for _ in range(4 if large else random.choice([1, 2, 2, 2, 3]))
        ),
        orders=tuple(_orders(random, mood, until, large) for _ in range(random.choice([1, 1, 2]))),
        interventions=tuple(_intervention(random, until) for _ in range(random.choice([0, 0, 2, 4]))),
        last_concurrency=random.choice([1, 3, 200]),
        ticks=size == "ticking",
    )


def _career(random: Random, mood: Mood, until: float, lease: float) -> tuple[Stint, ...]:
    stints: list[Stint] = []
    spent = 0.0
    while spent < until and random.random() < 0.7:
        seconds = random.uniform(1, until)
        stints.append(_stint(random, mood, seconds, lease))
        spent += seconds
    return tuple(stints)


def _stint(random: Random, mood: Mood, seconds: float, lease: float) -> Stint:
    accidents: list[Accident] = []
    long = random.choice([0.1, 0.5, 1.1, 1.6, 3.0]) * lease
    if mood == "cuts" and random.random() < 0.8:
        accidents.append(Accident(random.uniform(0, seconds), "cut", long))
    if mood == "violent" and random.random() < 0.4:
        accidents.append(Accident(random.uniform(0, seconds), random.choice(BLOWS), long))
    if accidents and random.random() < 0.6:
        seconds += long  # so that it outlives what befell it
    return Stint(
        seconds,
        random.choice(VIOLENT_ENDS if mood == "violent" else ENDS),
        random.choice([None, None, ("a",), ("b", "a")]),
        random.choice([1, 3, 50]),
        tuple(accidents),
    )


def _orders(random: Random, mood: Mood, until: float, large: bool) -> tuple[Order, ...]:
    words = WORDS if mood in ("calm", "outage") else (*WORDS, "block")
    count = 75 if large else random.randint(1, 6)
    return tuple(_order(random, words, until / count) for _ in range(count))


def _order(random: Random, words: tuple[str, ...], longest_gap: float) -> Order:
    steps = tuple((random.choice(words), _seconds(random)) for _ in range(3))
    delay = random.choice([0.0, 0.0, 0.0, 5.0, 20.0])
    return Order(
        after=random.choice([0.0, 0.0, random.uniform(0, longest_gap)]),
        steps=steps,
        task="sole" if random.random() < 0.25 and not _may_outlast(steps) else "work",
        queue=random.choice(QUEUES),
        priority=random.choice([0, 0, 0, 5, -5]),
        delay=delay,
        timeout=random.choice([None] * 6 + [3.0]),
        expires=random.choice([None] * 8 + [delay + 10]),
    )


def _may_outlast(steps: tuple[Step, ...]) -> bool:
    """Whether a handler may go on after it was told to end, which nobody can help."""
    return any(word in ("stubborn", "tidy", "block") for word, _ in steps)


def _seconds(random: Random) -> float:
    return random.choice([random.uniform(0.001, 0.2), random.uniform(0.1, 3), random.uniform(3, 60)])


def _intervention(random: Random, until: float) -> Intervention:
    return Intervention(
        random.uniform(0, until / 2),
        random.choice(ACTS),
        random.random(),
        random.uniform(0.1, until / 4),
    )


def _clock_steps(random: Random, until: float) -> tuple[tuple[float, int], ...]:
    """When the clock of the store jumps, and by how many milliseconds; mostly never."""
    if random.random() < 0.75:
        return ()
    return ((random.uniform(0, until), random.choice([3_000, 100_000, -3_000, -40_000, -200_000])),)
