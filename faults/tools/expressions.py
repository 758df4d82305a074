"""Cron expressions to try: those in which something is special, and others that chance makes."""

from random import Random

SPECIAL = (
    # fixed times at which clocks are changed somewhere, or right before and after
    "0 0 * * *", "1 0 * * *", "30 0 * * *", "59 23 * * *", "0 1 * * *", "30 1 * * *", "59 1 * * *", "0 2 * * *",
    "15 2 * * *", "30 2 * * *", "59 2 * * *", "0 3 * * *", "30 3 * * *", "15,45 0,1,2,3 * * *", "0-30/10 1-3 * * *",
    "0,30 0-3 * * SUN", "10 0/2 * * *", "5/20 2 * * *", "0 0-23 * * *", "30 0-23/3 * * *", "45 23,0 * * *",
    # what sweeps over minutes or hours
    "0 * * * *", "30 * * * *", "*/30 * * * *", "*/20 0-4 * * *", "* 2 * * SUN", "*/15 1,2,3 * * 0", "0 */2 * * *",
    "30 */6 * * *", "0 */5 * * *", "7 */12 * * 1-5", "*/45 * * * 7", "0 *,5 * * *",
    # days: leap days, ends of months, weekdays, both at once
    "0 0 29 2 *", "30 2 29 2 *", "0 12 29 FEB MON", "0 0 31 * *", "15 10 30 * *", "0 0 L * *", "30 2 L * *",
    "0 0 LW * *", "0 9 LW 2,4,6 *", "0 0 1,L * *", "0 0 * * 5L", "0 2 * * 0L", "30 1 * * 7L", "0 0 * * 1#1",
    "0 0 * * MON#2", "30 2 * * SUN#5", "15 2 * * 0#2", "15 1 * * SUN#1", "0 0 * * 7#4", "0 0 13 * FRI", "0 0 1-7 * MON",
    "0 0 */2 * 1-5", "0 0 */7 * SUN", "0 0 1,15 * WED", "0 0 * * */2", "0 0 10-20/5 * 6-7", "0 0 L * FRI",
    "0 0 LW * 3#3", "0 8 1 1,4,7,10 *", "0 0 30 12 *", "0 12 30 DEC *", "0 0 25 DEC 0", "0 0 1 1 *",
    "30 2 8-14 MAR SUN", "30 1 1-7 NOV 0", "0 0 * OCT-DEC SAT,SUN", "59 23 31 12 *", "0 0 1 */3 *", "0 0 2/9 * *",
    "0 0 * 6/2 TUE", "0 0 28-31 2 *", "5 4 * * sun", "0 22 * * mon-fri", "23 0-20/2 * * *", "0 0,12 1 */2 *",
    # with seconds
    "0 0 0 * * *", "30 30 2 * * *", "*/30 30 2 * * *", "0,59 59 1 * * *", "15 0 * * * *", "5 0 3 L * *",
    "10,20 0 0 29 2 *", "0 0 2 * * SUN", "45 30 1-2 * * 0#1", "1-3 0 0 1 * *", "0 */30 1-3 * * SUN",
    # words
    "@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly",
)  # fmt: skip
DENSE = ("* * * * *", "*/5 * * * *", "*/7 * * * *", "1-59/2 * * * *", "* 0-4 * * *", "0/10 * * * *")
BY_THE_SECOND = ("* * * * * *", "*/10 * * * * *", "30 * * * * *", "*/7 */3 * * * *")  # for short times only


def some(random: Random, count: int) -> list[str]:
    """Others, each asked for no more often than a few times an hour."""
    return [_one(random) for _ in range(count)]


def _one(random: Random) -> str:
    hour = random.choice(("*", "*/2", "*/3", "*/8", "", "", "", "", "", "", "", ""))
    minute = "*/30" if not hour and random.random() < 0.1 else _numbers(random, 0, 59, most=2)
    hour = hour or _numbers(random, 0, 4 if random.random() < 0.7 else 23, most=3)
    second = f"{_numbers(random, 0, 59, most=2)} " if random.random() < 0.2 else ""
    month = "*" if random.random() < 0.7 else _numbers(random, 1, 12, most=4)
    return f"{second}{minute} {hour} {_day(random)} {month} {_weekday(random)}"


def _numbers(random: Random, low: int, high: int, *, most: int) -> str:
    kind = random.random()
    if kind < 0.1 and low == 1 < most:
        return f"*/{random.randint(2, 5)}"
    if kind < 0.3:
        first = random.randint(low, high)
        return f"{first}-{random.randint(first, min(high, first + most))}"
    return ",".join(str(random.randint(low, high)) for _ in range(random.randint(1, most)))


def _day(random: Random) -> str:
    kind = random.random()
    if kind < 0.55:
        return "*"
    if kind < 0.7:
        return random.choice(("L", "LW", "1,L", "29", "31", "30,31", "*/2", "*/10", "3/9"))
    return _numbers(random, 1, 31, most=3)


def _weekday(random: Random) -> str:
    kind = random.random()
    if kind < 0.5:
        return "*"
    day = random.choice((*"01234567", "SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))
    if kind < 0.6:
        return f"{day}#{random.randint(1, 5)}"
    if kind < 0.7:
        return f"{random.randint(0, 7)}L"
    return random.choice((day, "MON-FRI", "6,7", "0,3", "*/3", "5-7"))
