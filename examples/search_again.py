"""The task in the middle of `search.py`: it chooses the files that the second stage searches.

Its arguments are a word and references to the counts of the first stage, texts of lines
`PATH:COUNT`. The tasks that it spawns depend on these texts, so the graph is not known in advance.
It does not wait for its children: it delegates its output to the last of them.
"""

from ciel.executors.sdk import ciel_task

FILES = 5
# Prints the function that contains the word most often, which is the nearest preceding `def`.
WITHIN = r"""
/^[ \t]*(async )?def / { name = $0; sub(/^[ \t]*(async )?def /, "", name); sub(/\(.*/, "", name) }
$0 ~ "(^|[^A-Za-z0-9_])" word "([^A-Za-z0-9_]|$)" && name != "" { count[name]++ }
END { for (name in count) if (count[name] > most) { most = count[name]; best = name }
      n = split(FILENAME, parts, "/"); printf "%6d  %s in %s\n", most, best, parts[n] }
"""


def run(task: ciel_task.Task) -> None:
    """Choose files by the counts, and spawn their search; delegate the output to the join."""
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
