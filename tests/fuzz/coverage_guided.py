"""The same targets under atheris, which steers its mutations by the code that they reach:

python tests/fuzz/coverage_guided.py --list
python tests/fuzz/coverage_guided.py TARGET [-runs=100000] [options of libFuzzer]

An input that leads to anything but an answer or one sentence ends it with code 77, and is kept in the folder where it
was started."""

import os
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["ebmbounds", "targets", "pickle", "csv", "tarfile", "json"]):
    from targets import TARGETS, TEMPORARY


def main() -> None:
    if sys.argv[1:] == ["--list"]:
        sys.stdout.write("\n".join(TARGETS) + "\n")
        return
    target = TARGETS[sys.argv[1]]
    with TEMPORARY, tempfile.TemporaryDirectory() as corpus:
        for i, seed in enumerate(target.seeds):
            Path(corpus, str(i)).write_bytes(seed)
        options = ["-runs=100000", "-max_len=20000", "-rss_limit_mb=4096", "-timeout=20", "-print_final_stats=1"]
        fuzzer = os.fork()  # it ends its process without a word to Python, and would leave the folders behind
        if not fuzzer:
            atheris.Setup([sys.argv[0], *options, *sys.argv[2:], corpus], target)
            atheris.Fuzz()
        code = os.waitstatus_to_exitcode(os.waitpid(fuzzer, 0)[1])
    sys.exit(code)


if __name__ == "__main__":
    main()
