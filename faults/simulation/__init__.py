"""Whole systems on virtual time: workers, producers, operators and a store, disturbed by chance, and chance by a seed.

    loop.py      the event loop of a world: its processes, which can be paused and killed, and its time
    line.py      a process's way to the store: it delays, loses, repeats, and is cut
    witness.py   sees every commit, and knows which changes are lawful
    handlers.py  what the jobs of a world do
    people.py    producers and an operator, who use the store from outside
    book.py      what they and the handlers have written down, and whether the store agrees
    plan.py      what a seed stands for: how many of whom, and what befalls them
    world.py     one seed, lived from its beginning to its end, and judged
    store.py     where its jobs are: in memory, or in a file

`python3 -m faults.simulation --seed 17` lives through one world and tells what was wrong in it. All that happens in
it follows from the seed: the order in which processes get to run, too. So a world that broke a promise breaks it again.
"""
