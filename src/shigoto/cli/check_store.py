"""What can be wrong with a store and its machine: one pure function per question, from facts to a finding."""

from datetime import timedelta

from shigoto.cli.findings import Facts, Finding, Level
from shigoto.cli.output import span
from shigoto.model.time import MAX_HOLD, to_datetime

MENDED = (3, 51, 3)  # the first SQLite without the WAL-reset bug
MIB = 1024 * 1024
LONG_LOG = 64 * MIB  # four times what makes us copy it back
LITTLE_SPACE, NO_SPACE = 512 * MIB, 64 * MIB

# On a network the store is not opened at all; its engine says why.
VANISHING = {
    "overlay": "of a container's own layer, which is thrown away with the container",
    "tmpfs": "in memory, which is lost when the machine restarts",
    "ramfs": "in memory, which is lost when the machine restarts",
}


def python(facts: Facts) -> Finding:
    """Which Python runs this."""
    return Finding(check="python", level=Level.OK, text=f"This is Python {facts.python}.")


def store(facts: Facts) -> Finding | None:
    """Whether the store can be opened, and has the schema of this release."""
    if facts.checkup is None:
        return None
    if facts.checkup.refusal is not None:
        return Finding(
            check="store",
            level=Level.PROBLEM,
            text=facts.checkup.refusal,
            remedy="Until this is mended nothing can be said about its jobs.",
        )
    size = _bytes(max(part.size for part in (facts.file, facts.server) if part is not None))
    name = facts.checkup.name if facts.file is None else facts.file.path
    return Finding(check="store", level=Level.OK, text=f"{name} is up to date and has {size}.")


def move(facts: Facts) -> Finding | None:
    """Whether its jobs are on their way to another store, or were moved."""
    if facts.store is None or facts.store.move is None or facts.checkup is None:
        return None
    name = facts.checkup.name if facts.file is None else facts.file.path
    kind, other = facts.store.move.kind, facts.store.move.other
    if kind == "moved":
        return Finding(
            check="move",
            level=Level.PROBLEM,
            text=f"{name} was moved to {other}, where its jobs are now: nothing is stored here any more.",
            remedy="Use that address.",
        )
    doing = f"filled with the jobs of {other}" if kind == "filling" else f"moved to {other}"
    return Finding(
        check="move",
        level=Level.WARNING,
        text=f"{name} is being {doing}, and that is not finished.",
        remedy="If it was interrupted, run the same command again, or `shigoto move … --give-up`.",
    )


def version(facts: Facts) -> Finding | None:
    """Whether this SQLite has the WAL-reset bug."""
    if facts.checkup is None or facts.file is None:
        return None
    number = tuple(int(part) for part in facts.checkup.version.split("."))
    if number >= MENDED:
        return Finding(
            check="sqlite", level=Level.OK, text=f"SQLite {facts.checkup.version} has no known faults."
        )
    return Finding(
        check="sqlite",
        level=Level.NOTE,
        text=(
            f"SQLite {facts.checkup.version} has the WAL-reset bug, unless your distribution has mended it:"
            " a checkpoint beside a writer can corrupt the file. Shigoto's own checkpoints keep writers out."
        ),
        remedy=(
            "Use app.connect() for statements of your own, since other connections checkpoint by themselves; or a"
            " Python with SQLite 3.51.3 or newer."
        ),
    )


def file_system(facts: Facts) -> Finding | None:
    """Whether the file lies where files stay."""
    if facts.file is None:
        return None
    kind = facts.file.file_system
    if kind in VANISHING:
        return Finding(
            check="file system",
            level=Level.WARNING,
            text=f"The store lies on a file system ({kind}) {VANISHING[kind]}.",
            remedy="Put it on a disk or a volume that stays, unless its jobs may be lost.",
        )
    named = f"The file system is {kind}." if kind else "The system does not tell the kind of file system."
    return Finding(check="file system", level=Level.OK, text=named)


def permissions(facts: Facts) -> Finding | None:
    """Whether we may write the store, and others may not."""
    file = facts.file
    if file is None:
        return None
    if file.forbidden:
        return Finding(
            check="permissions",
            level=Level.PROBLEM,
            text=f"This user may not read and write {', '.join(file.forbidden)}.",
            remedy="Run as the user who owns the store, or give this one access to the file and its folder.",
        )
    if file.exposed:
        return Finding(
            check="permissions",
            level=Level.WARNING,
            text=f"Every user of this machine may change {', '.join(file.exposed)}.",
            remedy="Take the right to write from others: chmod o-w.",
        )
    return Finding(check="permissions", level=Level.OK, text="The file and its folder can be written.")


def space(facts: Facts) -> Finding | None:
    """Whether the disk has room."""
    if facts.file is None or facts.file.free is None:
        return None
    free = facts.file.free
    level = Level.PROBLEM if free < NO_SPACE else Level.WARNING if free < LITTLE_SPACE else Level.OK
    remedy = (
        "Free some: on a full disk nothing can be enqueued or settled." if level is not Level.OK else None
    )
    return Finding(check="disk", level=level, text=f"The disk has {_bytes(free)} left.", remedy=remedy)


def log(facts: Facts) -> Finding | None:
    """Whether the write-ahead log is copied back as it should be."""
    if facts.file is None:
        return None
    size = facts.file.log_size
    if size < LONG_LOG:
        return Finding(check="log", level=Level.OK, text=f"The write-ahead log has {_bytes(size)}.")
    return Finding(
        check="log",
        level=Level.WARNING,
        text=(
            f"The write-ahead log has grown to {_bytes(size)}: by one large commit, or because somebody reads for a"
            " long time and keeps it from being copied back."
        ),
        remedy=(
            "The next commits will tell: if the log stays as long, find the connection that keeps a transaction open,"
            " perhaps a backup, a browser of the file or code of your own, and end it."
        ),
    )


def journal(facts: Facts) -> Finding | None:
    """Whether commits are as safe as they should be."""
    if facts.store is None or facts.file is None:
        return None
    if facts.store.journal_mode != "wal":
        return Finding(
            check="journal",
            level=Level.PROBLEM,
            text=f"The journal mode is {facts.store.journal_mode!r}: readers and writers stop each other.",
            remedy="Somebody has changed it. Stop all processes and execute PRAGMA journal_mode = wal.",
        )
    if facts.store.synchronous != "full":
        return Finding(
            check="journal",
            level=Level.NOTE,
            text=f"synchronous is {facts.store.synchronous!r}: a power cut can lose the last commits.",
            remedy="Leave synchronous out of the store's address, unless that is what you want.",
        )
    return Finding(check="journal", level=Level.OK, text="Every commit is on the disk before it counts.")


def integrity(facts: Facts) -> Finding | None:
    """Whether the pages of the file make sense, if somebody has looked."""
    if facts.store is None or facts.store.damage is None:
        return None
    if facts.store.damage:
        return Finding(
            check="integrity",
            level=Level.PROBLEM,
            text=f"The file is damaged: {'; '.join(facts.store.damage)}",
            remedy="Stop all processes, keep a copy of the file and its -wal, and restore a backup.",
        )
    return Finding(check="integrity", level=Level.OK, text="No page of the file is damaged.")


def clock(facts: Facts) -> Finding | None:
    """Whether the machine's clock agrees with the times that the store has seen."""
    if facts.store is None or not facts.store.clock or facts.file is None:
        return None
    lead = to_datetime(facts.store.clock) - facts.now
    if lead > timedelta(milliseconds=MAX_HOLD):
        return Finding(
            check="clock",
            level=Level.PROBLEM,
            text=f"The store has seen a time that lies {span(lead)} ahead of this machine's clock.",
            remedy="Set the clock right, with a time server. Workers go by it, and give every lease its time again.",
        )
    if lead > timedelta(seconds=1):
        return Finding(
            check="clock",
            level=Level.WARNING,
            text=f"The clock was set back a little: for the next {span(lead)} time stands still for the store.",
            remedy="Nothing, if it happens once; a time server that slews the clock avoids it.",
        )
    ago = "" if lead > timedelta(seconds=-1) else f", and was last heard of {span(-lead)} ago"
    return Finding(check="clock", level=Level.OK, text=f"The store's clock agrees with this machine's{ago}.")


def _bytes(size: int) -> str:
    return f"{size / MIB / 1024:.1f} GiB" if size >= 1024 * MIB else f"{size / MIB:.1f} MiB"
