"""What `shigoto bench` does: measures a store on this machine, with jobs of its own that it deletes afterwards.

    place      where the jobs live: new files, a store that was named, or memory
    tasks      the tasks, which do nothing
    storing    how fast jobs are stored; bare is the limit that the disk sets
    running    how fast they run, and how soon they begin
    crew       runner processes, as this process sees them; program is what each of them runs
    usage      what a process has used; figures is what a measure tells
    rounds     all measures, in rounds, each verified in the store
    report     all figures: medians, percentiles, and JSON
    picture    the same as an SVG

Importing this package imports none of these.
"""

# By the names that `--only` takes, in the order in which they are measured.
MEASURES = {
    "enqueue": "enqueue, one by one",
    "aenqueue": "aenqueue, 64 at once",
    "bulk": "enqueue_many, 1000 at once",
    "drain": "drain, async functions",
    "drain-sync": "drain, sync functions",
    "latency": "latency, idle worker",
}
