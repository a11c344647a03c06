"""The task in the middle of `search.py`: it reads the counts of the first stage, and decides which
files are searched again.

It is given a word and references to texts of lines `PATH:COUNT`. What it spawns depends on what it
reads, so nobody knew the graph before. It does not wait for its children: the last of them takes
over its output.
"""

from ciel.executors.sdk import ciel_task

FILES = 5
# Prints the functions in which the word stands, by looking back for the nearest `def`.
WITHIN = r"""
/^[ \t]*(async )?def / { name = $0; sub(/^[ \t]*(async )?def /, "", name); sub(/\(.*/, "", name) }
$0 ~ "(^|[^A-Za-z0-9_])" word "([^A-Za-z0-9_]|$)" && name != "" { count[name]++ }
END { for (name in count) if (count[name] > most) { most = count[name]; best = name }
      n = split(FILENAME, parts, "/"); printf "%6d  %s in %s\n", most, best, parts[n] }
"""


def run(task: ciel_task.Task) -> None:
    """Choose files by the counts, and have them searched; the join takes over the output."""
    word, answers = task.args
    counts: list[tuple[int, str]] = []
    for answer in answers:
        for line in task.read(answer).decode().splitlines():
            path, _, count = line.rpartition(":")
            counts.append((-int(count), path))
    chosen = [path for count, path in sorted(counts)[:FILES] if count]
    found: list[ciel_task.Ref] = []
    for path in chosen:
        command = ["awk", "-v", f"word={word}", WITHIN, path]
        name = f"look into {path.rpartition('/')[2]}"
        outputs = task.spawn("stdinout", args={"command_line": command}, name=name)
        found += outputs if isinstance(outputs, list) else [outputs]
    join = {"command_line": ["sort", "-rn"], "inputs": found}
    task.tail_spawn("stdinout", args=join, name="join")


ciel_task.serve(run)
