"""Runs inside gdb and sets a breakpoint on each function of WALK_FUNCTIONS, which writes every hit and its thread to
WALK_HITS.

gdb finds the functions by their symbols. A function that does not exist or was inlined everywhere is an error.
"""

import os

import gdb

hits = open(os.environ["WALK_HITS"], "a", buffering=1)


class Hit(gdb.Breakpoint):
    def __init__(self, function):
        super().__init__(f"-function {function}")
        self.function = function

    def stop(self):
        hits.write(f"{self.function} {gdb.selected_thread().name}\n")
        return False


for setting in ("pagination off", "confirm off", "breakpoint pending off", "print thread-events off"):
    gdb.execute(f"set {setting}")
gdb.execute("handle all nostop noprint pass")
for name in os.environ["WALK_FUNCTIONS"].split():
    Hit(name)
gdb.execute("run")
