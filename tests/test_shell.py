"""What shell commands tell: the seconds they sleep and the class they belong to."""

import math
import shlex
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tao import commands, shell
from tao.commands import CLASSES, COMMAND_CLASSES, TOOL_CLASSES, classify, tool_class
from tao.shell import sleep_seconds

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="bash is not installed")

SLEEPS = [
    # lengths
    ("sleep 5", 5),
    ("  sleep   5  ", 5),
    ("sleep 5s", 5),
    ("sleep 0.5m", 30),
    ("sleep 1h", 3600),
    ("sleep 1d", 86400),
    ("sleep .5", 0.5),
    ("sleep 5.", 5),
    ("sleep 1e2", 100),
    ("sleep 1 2", 3),
    ("sleep 1m 30s", 90),
    ("sleep '5'", 5),
    ('sleep "5"', 5),
    ("sleep \\5", 5),
    ("sleep infinity", math.inf),
    ("sleep inf", math.inf),
    ("sleep 0", None),
    # GNU sleep refuses these and returns at once
    ("sleep", None),
    ("sleep abc", None),
    ("sleep -1", None),
    ("sleep 1m30s", None),
    ("sleep 5 abc", None),
    ("sleep 5S", None),
    ("sleep nan", None),
    ("sleep --help", None),
    ("sleep abc; sleep 2", 2),
    # only the shell could tell
    ("sleep $N", None),
    ('sleep "$N"', None),
    ("sleep ${DELAY:-5}", None),
    ("sleep $((2*3))", None),
    ("sleep $(cat delay.txt)", None),
    ("sleep `cat delay.txt`", None),
    ("sleep 5; sleep $N", None),
    ("sleep $N || sleep 5", None),
    # in a row
    ("cd x && sleep 3; make", 3),
    ("sleep 5 && curl -s localhost:8000/health", 5),
    ("python manage.py migrate && sleep 2 && python manage.py check", 2),
    ("sleep 1; sleep 2", 3),
    ("sleep 1\nsleep 2\n", 3),
    ("sleep 1 &&\n\n  sleep 2", 3),
    ("sleep 1 && \\\nsleep 2", 3),
    ("sleep \\\n 5", 5),
    ("a || sleep 3", None),
    ("sleep 2 || sleep 3", 2),
    ("a || b && sleep 3", 3),
    ("! grep -q error log && sleep 3", 3),
    ("set -e; export A=1; sleep 2", 2),
    ("[ -f x ] && sleep 2", 2),
    ("[[ -f x && ( -d y || -d z ) ]] && sleep 2", 2),
    ("(( i++ )); sleep 2", 2),
    # groups, pipelines
    ("(sleep 2; sleep 3)", 5),
    ("( cd x && sleep 2 ) && sleep 3", 5),
    ("{ sleep 2; }", 2),
    ("{ sleep 2; sleep 3; } 2>/dev/null", 5),
    ("sleep 5 | cat", 5),
    ("sleep 2 | sleep 7 | sleep 3", 7),
    ("sleep 2 |& tee log", 2),
    ("yes | sleep $N | sleep 3", None),
    # background
    ("sleep 5 &", None),
    ("nohup sleep 5 &", None),
    ("(sleep 60; kill $$) &", None),
    ("sleep 5 & sleep 2", 2),
    ("cd app && sleep 5 & sleep 2", 2),
    ("sleep 5 & wait", 5),
    ("sleep 5 & sleep 2; wait", 5),
    ("sleep 5 & sleep 2; wait; sleep 1", 6),
    ("sleep 2 & sleep 5; wait", 5),
    ("sleep 1; sleep 5 & wait $!", 6),
    ("sleep $N & wait", None),
    ("sleep 5 & (sleep 2; wait)", 2),
    ("python -m http.server 8000 & sleep 3; curl -s localhost:8000; kill %1", 3),
    ("npm start > /tmp/log 2>&1 &\nPID=$!\nsleep 10\ncurl -s localhost:3000\nkill $PID", 10),
    # loops
    ("for i in 1 2 3; do sleep 2; done", 6),
    ("for i in {1..5}; do sleep 2; done", 10),
    ("for i in {5..1}; do sleep 2; done", 10),
    ("for i in $(seq 3); do sleep 2; done", 6),
    ("for i in $(seq 2 6); do sleep 2; done", 10),
    ("for i in $(seq 1 2 5); do sleep 2; done", 6),
    ("for i in $(seq 6 2); do sleep 2; done", None),
    ("for i in `seq 3`; do sleep 2; done", 6),
    ("for i in $(seq $N); do sleep 2; done", None),
    ("for i in '$(seq 3)'; do sleep 2; done", 2),
    ("for ((i=0;i<3;i++)); do sleep 2; done", 6),
    ("for (( i = 1; i <= 10; i += 3 )); do sleep 2; done", 8),
    ("for ((i=0;i<n;i++)); do sleep 2; done", None),
    ("for ((;;)); do sleep 2; done", math.inf),
    ("for i in 1 2\ndo\n  sleep 2\ndone\nsleep 1", 5),
    ("for i in 1 2; do for j in a b c; do sleep 1; done; done", 6),
    ("for i in 'a b' c; do sleep 1; done", 2),
    ("for f in *.py; do sleep 1; done", None),
    ("for f in *.py; do wc -l $f; done; sleep 3", 3),
    ("for f in $FILES; do sleep 1; done", None),
    ("for f; do sleep 1; done", None),
    ("for i in 1 2 3; do curl -sf localhost && break; sleep 1; done", None),
    ("for i in 1 2 3; do sleep 1 & done; sleep 4", 4),
    ("while true; do date; sleep 1; done", math.inf),
    ("while :\ndo sleep 1; done", math.inf),
    ("timeout 20 bash -c 'while true; do sleep 1; done'", 20),
    ("while ! curl -s localhost; do sleep 1; done", None),
    ("until pg_isready -q; do sleep 1; done", None),
    ("timeout 60 bash -c 'until nc -z localhost 5432; do sleep 1; done'", None),
    ("while read -r line; do echo $line; done < f; sleep 2", 2),
    # an unknown part is not the same as one that does not sleep
    ("for f in *.py; do sleep 1; done; sleep 2", None),
    ("for i in $(seq $N); do sleep 1; done; sleep 2", None),
    ("for i in $(seq 1 0 3); do sleep 1; done; sleep 2", None),
    ("for ((i=0;i<n;i++)); do sleep 1; done; sleep 2", None),
    ("for i in 1 2; do curl -s localhost && break; sleep 1; done; sleep 2", None),
    ("for i in 1 2; do [ -f f$i ] || exit 1; sleep 1; done; sleep 2", None),
    ("while ! curl -s localhost; do sleep 1; done; sleep 2", None),
    ("until sleep 1; do ls; done; sleep 2", None),
    ("if [ -f x ]; then sleep 5; fi; sleep 2", None),
    ("if [ -f x ]; then ls; elif [ -f y ]; then sleep 5; fi; sleep 2", None),
    ("echo 5 | xargs sleep; sleep 2", None),
    ("seq 3 | xargs -I{} sh -c 'sleep 1; echo {}'; sleep 2", None),
    ("seq 3 | xargs -n1 ls; sleep 2", 2),
    ("for i in $(sleep 2; seq 3); do ls; done", 2),
    # may or may not run
    ("if [ -f x ]; then sleep 5; fi", None),
    ("if [ -f x ]; then ls; elif [ -f y ]; then cat y; else pwd; fi; sleep 2", 2),
    ("if sleep 3; then ls; fi", 3),
    ("case $1 in start) sleep 5;; esac", None),
    ("f() { sleep 5; }; f", None),
    ("function f { sleep 5; }", None),
    # programs that run another one
    ("timeout 10 sleep 60", 10),
    ("timeout 60 sleep 10", 10),
    ("timeout 1m sleep 5m", 60),
    ("timeout -k 5 10 sleep 60", 10),
    ("timeout -s KILL --kill-after=5 10 sleep 60", 10),
    ("timeout --signal TERM --preserve-status 0.5m sleep 60", 30),
    ("timeout 0 sleep 60", 60),
    ("timeout $T sleep 60", None),
    ("timeout 10 sleep $N", None),
    ("timeout $T make && sleep 2", 2),
    ("timeout 5 timeout 9 sleep 60", 5),
    ("timeout 9 timeout 5 sleep 60", 5),
    ("timeout 10 sleep 60; sleep 1", 11),
    ("timeout 3 pytest -x", None),
    ('sh -c "sleep 5"', 5),
    ("bash -lc 'sleep 5 && ls'", 5),
    ("bash -euo pipefail -c 'sleep 5'", 5),
    ('bash -c "sleep $N; sleep 2"', None),
    ("bash run.sh && sleep 1", 1),
    ("time sleep 3", 3),
    ("time -p sleep 3", 3),
    ("time ! sleep 3", 3),
    ("time (sleep 1; sleep 2)", 3),
    ("/usr/bin/time -f %e sleep 3", 3),
    ("sudo sleep 5", 5),
    ("sudo -u postgres sleep 5", 5),
    ("env A=1 B=2 sleep 5", 5),
    ("A=1 sleep 5", 5),
    ("nice -n 5 sleep 2", 2),
    ("/bin/sleep 5", 5),
    ("exec sleep 5", 5),
    ("sudo timeout 5 env A=1 nice sleep 60", 5),
    ("echo 5 | xargs sleep", None),
    ("seq 3 | xargs -I{} sh -c 'sleep 1; echo {}'", None),
    # redirections
    ("sleep 5 > /dev/null 2>&1", 5),
    ("sleep 5 &> /tmp/log", 5),
    ("sleep 5>/tmp/log", None),
    (">log sleep 5", 5),
    ("sleep 5 < /dev/null >> log", 5),
    ("sleep 2 && cat <<< 'sleep 9'", 2),
    # substitutions
    ("OUT=$(sleep 2; date)", 2),
    ('echo "$(sleep 2)" `sleep 3`', 5),
    ("diff <(sleep 2) expected.txt", 2),
    ("x=$((1 + (2*3))); sleep 1", 1),
    ("files=(a b c); sleep 1", 1),
    # mentions that are no commands
    ("echo sleep 5", None),
    ('echo "sleep 5"', None),
    ("echo 'a; sleep 5'", None),
    ("echo a\\; sleep 5", None),
    ("grep -rn 'sleep 5' src", None),
    ("man sleep; sleeping 5; ./sleep.sh 5", None),
    ("python -c 'import time; time.sleep(5)'", None),
    ("# sleep 5", None),
    ("sleep 2 # sleep 5", 2),
    ("echo a#b; sleep 2", 2),
    ("sleep 2 # it's done\nsleep 3", 5),
    ("cat <<EOF\nsleep 5\nEOF", None),
    ("cat > run.sh <<'EOF'\nsleep 5\nit's \"(\nEOF\nsleep 2", 2),
    ("cat <<-EOF > f && sleep 1\n\tsleep 5\n\tEOF\nsleep 2", 3),
    ("cat <<A; cat <<B\nsleep 5\nA\nsleep 6\nB\nsleep 2", 2),
    ("cat <<EOF\nsleep 5\n  EOF\nsleep 2", None),
    ('git commit -m "$(cat <<\'EOF\'\nit\'s "so" (\nEOF\n)" && sleep 2', 2),
    # no commands at all, and text that bash refuses
    ("", None),
    ("\n;\n", None),
    ("sleep 5; (", None),
    ("sleep 5; )", None),
    ("sleep 5; 'abc", None),
    ("sleep 5; if", None),
    ("sleep 5 &&", None),
    ("for i in 1 2; sleep 5; done", None),
    ("(sleep 5) sleep 2", None),
    ("sleep 5 > ", None),
]


@pytest.mark.parametrize(("command", "seconds"), SLEEPS)
def test_known_foreground_sleeps_are_read_from_the_text(command, seconds):
    assert sleep_seconds(command) == (None if seconds is None else pytest.approx(seconds))


CLASSIFIED = [
    # read
    ("cat src/main.py", "read"),
    ("head -50 README.md", "read"),
    ("nl -ba src/app.py | sed -n '10,40p'", "read"),
    ("sed -n '1,200p' tao/model.py", "read"),
    ("cd /testbed && cat setup.cfg | head -20", "read"),
    ("tail -n 100 /var/log/syslog 2>/dev/null", "read"),
    ("curl -s localhost/data | python -m json.tool", "web"),
    # search
    ("ls -la", "search"),
    ("find . -name '*.py' | head", "search"),
    ("grep -rn 'def plan' --include=*.py . | head -20", "search"),
    ("rg -l TODO src/ 2>/dev/null | wc -l", "search"),
    ("git ls-files | xargs grep -n foo", "git"),
    ("find . -name '*.py' | xargs grep -ln foo", "search"),
    ("which python3; command -v pytest", "search"),
    ("[ -f x ] && ls x || echo none", "search"),
    # edit
    ("sed -i 's/a/b/' f.py", "edit"),
    ("sed -i.bak -e 's/a/b/' f.py", "edit"),
    ("sed -Ei 's/a/b/' f.py && grep -n b f.py", "edit"),
    ("find . -name '*.py' | xargs sed -i 's/a/b/'", "edit"),
    ("perl -pi -e 's/a/b/' f.py", "edit"),
    ("cat > f.py <<'EOF'\nimport pytest\npytest.main()\nEOF", "edit"),
    ("cat <<'EOF' > f.py\nmake test\nEOF", "edit"),
    ("echo 'x = 1' >> f.py", "edit"),
    ("printf 'a\\n' > f", "edit"),
    ("echo secret | sudo tee /etc/motd", "edit"),
    ("mkdir -p a/b && touch a/b/c", "edit"),
    ("rm -rf build/", "edit"),
    ("mv a b; cp b c", "edit"),
    ("> empty.txt", "edit"),
    ("echo hi > /dev/null", "other"),
    ("echo hi >&2", "other"),
    ("cat f 2> errors.txt", "read"),
    # test
    ("pytest", "test"),
    ("python -m pytest -q tests/test_x.py::test_y", "test"),
    ("cd /testbed && python3 -m pytest -x 2>&1 | tail -20", "test"),
    ("python3.11 -W ignore -m unittest discover", "test"),
    ("source venv/bin/activate && PYTHONPATH=. timeout 300 pytest -x", "test"),
    (". venv/bin/activate; set -e; pytest | tee log.txt", "test"),
    ("conda activate testbed && pytest -rA sklearn/tests", "test"),
    ("./tests/runtests.py --settings=test_sqlite auth", "test"),
    ("cd tests && python runtests.py model_fields", "test"),
    ("python manage.py test polls", "test"),
    ("bin/test sympy/core", "test"),
    ("tox -e py311", "test"),
    ("npm test -- --watch=false", "test"),
    ("CI=1 npx jest src/a.test.ts", "test"),
    ("uv run pytest -q", "test"),
    ("poetry run python -m pytest", "test"),
    ("go test ./...", "test"),
    ("cargo test --release -- --nocapture", "test"),
    ("make -j4 test", "test"),
    ("bash -c 'cd /repo && make test'", "test"),
    ("for i in 1 2 3; do pytest -x || break; done", "test"),
    ("pip install -q pytest 2>&1 | tail -1 && git status", "install"),
    ("git stash && pytest -q; git stash pop", "test"),
    ("coverage run -m pytest && coverage report", "test"),
    # python
    ("python reproduce.py", "python"),
    ("python -c 'import sys; print(sys.path)'", "python"),
    ("python - <<'EOF'\nprint(1)\nEOF", "python"),
    ("cat > t.py <<'EOF'\nprint(1)\nEOF\npython t.py", "python"),
    ("node server.js", "python"),
    ("./manage.py migrate", "python"),
    ("sudo -u app env A=1 nice -n 5 python3 job.py", "python"),
    ("result=$(python3 run.py) && echo $result", "python"),
    # git
    ("git diff HEAD~1 -- src | head -100", "git"),
    ("cd /repo && git add -A && git commit -m 'make test pass; pytest'", "git"),
    ("cd $(git rev-parse --show-toplevel) && ls", "git"),
    # install
    ("pip install -e .", "install"),
    ("pip3 install numpy==1.26", "install"),
    ("python -m pip install -q requests", "install"),
    ("apt-get update && apt-get install -y curl", "install"),
    ("DEBIAN_FRONTEND=noninteractive sudo apt-get install -y build-essential", "install"),
    ("npm ci && npm run build", "install"),
    ("uv pip install -r requirements.txt", "install"),
    ("conda install -y numpy", "install"),
    ("python -m venv .venv && . .venv/bin/activate && pip install pytest", "install"),
    ("curl -LsSf https://example.org/install.sh | sh && cargo install ripgrep", "install"),
    # build
    ("make", "build"),
    ("mkdir -p build && cd build && cmake .. && make -j8", "build"),
    ("gcc -O2 -o a a.c && ./a", "build"),
    ("cargo build --release", "build"),
    ("npm run build", "build"),
    ("python setup.py build_ext --inplace", "build"),
    ("./configure --prefix=/usr", "build"),
    ("g++-12 -std=c++20 main.cc", "build"),
    # web
    ("curl -s https://example.org", "web"),
    ("wget -q https://example.org/a.tar.gz && tar xzf a.tar.gz", "web"),
    ("mkdir -p d && curl -o d/x https://example.org/x", "web"),
    # sleep
    ("sleep 5", "sleep"),
    ("sleep 5 && curl -s localhost", "sleep"),
    ("python app.py & sleep 3; curl -s localhost:5000", "sleep"),
    ("until curl -s localhost; do sleep 1; done", "sleep"),
    # other
    ("", "other"),
    ("cd /repo", "other"),
    ("echo done", "other"),
    ("./solve < input.txt | head -5", "other"),
    ("service nginx restart && ls", "other"),
    ("echo pytest", "other"),
    ("echo 'unterminated", "other"),
    ("# pytest", "other"),
    # background
    ("python app.py &", "python"),
    ("nohup python app.py > log 2>&1 & echo $!", "python"),
    ("python app.py & ls", "search"),
]


@pytest.mark.parametrize(("command", "name"), CLASSIFIED)
def test_commands_get_the_class_of_what_takes_longest(command, name):
    assert classify(command) == name


def test_the_tables_are_as_long_as_promised_and_rows_are_distinct():
    assert len({c for c, _ in SLEEPS}) == len(SLEEPS) >= 90
    assert len({c for c, _ in CLASSIFIED}) == len(CLASSIFIED) >= 60


@needs_bash
@pytest.mark.parametrize("command", [c for c, seconds in SLEEPS if seconds is not None])
def test_every_command_with_a_known_sleep_is_one_that_bash_accepts(command):
    assert subprocess.run([BASH, "-n", "-c", command], capture_output=True).returncode == 0


def test_every_class_in_the_tables_is_one_of_the_classes():
    assert set(COMMAND_CLASSES.values()) - {""} <= set(CLASSES)
    assert set(TOOL_CLASSES.values()) <= set(CLASSES)
    assert len(set(CLASSES)) == len(CLASSES) == 13


def test_a_user_can_add_programs_subcommands_and_classes():
    mine = COMMAND_CLASSES | {"bazel test": "test", "run.py": "test", "gpu-job": "gpu"}
    assert classify("bazel test //...") == "other"
    assert classify("bazel test //...", mine) == "test"
    assert classify("./run.py", mine) == "test"
    assert classify("pytest; gpu-job", mine) == "gpu"
    assert classify("bazel build //...", mine) == "other"


@pytest.mark.parametrize(
    ("tool", "command", "name"),
    [
        ("Read", None, "read"),
        ("Grep", None, "search"),
        ("Glob", None, "search"),
        ("Edit", None, "edit"),
        ("Write", None, "edit"),
        ("Task", None, "subagent"),
        ("TodoWrite", None, "bookkeeping"),
        ("BashOutput", None, "bookkeeping"),
        ("WebFetch", None, "web"),
        ("WebSearch", None, "web"),
        ("str_replace_editor", "view", "read"),
        ("str_replace_editor", "create", "edit"),
        ("Bash", "cd x && pytest", "test"),
        ("bash", "sleep 5", "sleep"),
        ("exec_command", "rg foo", "search"),
        ("write_stdin", None, "other"),
        ("", "", "other"),
    ],
)
def test_tools_get_the_class_of_their_name_or_of_their_command(tool, command, name):
    assert tool_class(tool, command) == name


known = st.sampled_from(
    [(c.strip(), s) for c, s in SLEEPS if s is not None and "#" not in c and "<<" not in c]
)
nothing = st.sampled_from(
    [c for c, s in SLEEPS if s is None and c.startswith(("echo ", "grep", "man")) and "5 |" not in c]
)
SCRAPS = """sleep 5 1m & && || | ; ;; ( ) { } if then else fi for in do done while true until case esac ! time
timeout sh -c $( ` ' " \\ # << EOF > $x $(( )) [[ ]] wait * env sudo xargs"""
scraps = st.sampled_from([*SCRAPS.split(), "\n"])
soup = st.lists(scraps, max_size=25).map(" ".join) | st.lists(scraps, max_size=25).map("".join)


@given(st.text() | soup)
@settings(max_examples=1000)
def test_any_text_gets_an_answer(text):
    seconds = sleep_seconds(text)
    assert seconds is None or (isinstance(seconds, float) and seconds > 0)
    assert classify(text) in CLASSES


@given(
    known, st.sampled_from(["{}; true", "true; {}", "( {}\n)", "{{ {}\n}}", "{} && ls", "if {}\nthen ls; fi"])
)
def test_company_that_does_not_sleep_changes_nothing(row, frame):
    command, seconds = row
    assert sleep_seconds(frame.format(command)) == pytest.approx(seconds)


@given(known, st.sampled_from(["timeout 1e9d", "timeout 0", "sudo -E", "env X=1", "nohup", "nice"]))
def test_a_wrapper_without_effect_changes_nothing(row, wrapper):
    command, seconds = row
    limit = 1e9 * 86400 if wrapper.endswith("d") else math.inf
    assert sleep_seconds(f"{wrapper} bash -c {shlex.quote(command)}") == pytest.approx(min(seconds, limit))


@given(known, st.floats(0.25, 100))
def test_a_timeout_cuts(row, limit):
    command, seconds = row
    assert sleep_seconds(f"timeout {limit} bash -c {shlex.quote(command)}") == pytest.approx(
        min(seconds, limit)
    )


@given(known, known)
def test_one_after_the_other_takes_the_sum(a, b):
    assert sleep_seconds(f"( {a[0]} ); {b[0]}") == pytest.approx(a[1] + b[1])


@given(known, known)
def test_side_by_side_takes_the_longer(a, b):
    assert sleep_seconds(f"( {a[0]} ) | ( {b[0]} )") == pytest.approx(max(a[1], b[1]))


@given(known, known)
def test_what_runs_in_the_background_is_waited_for_only_on_demand(a, b):
    assert sleep_seconds(f"( {a[0]} ) &") is None
    assert sleep_seconds(f"( {a[0]} ) & ( {b[0]} )") == pytest.approx(b[1])
    assert sleep_seconds(f"( {a[0]} ) & ( {b[0]} ); wait") == pytest.approx(max(a[1], b[1]))


@given(known, st.integers(1, 50))
def test_a_loop_repeats(row, turns):
    command, seconds = row
    assert sleep_seconds(f"for i in {{1..{turns}}}; do {command}\ndone") == pytest.approx(turns * seconds)


@given(known)
def test_one_unknown_part_makes_the_whole_unknown(row):
    assert sleep_seconds(f"( {row[0]} ); sleep $N") is None
    assert sleep_seconds(f"if test -f x; then {row[0]}\nfi") is None


@given(nothing, known)
def test_commands_that_do_not_sleep_are_not_unknown(quiet, row):
    assert sleep_seconds(f"{quiet}\n{row[0]}") == pytest.approx(row[1])
    assert sleep_seconds(f"for f in *; do {quiet}\ndone; {row[0]}") == pytest.approx(row[1])


def _compound(inner):
    two = st.tuples(inner, inner)
    return st.one_of(
        two.map(" && ".join),
        two.map("; ".join),
        two.map("\n".join),
        inner.map("true || ( {} )".format),
        inner.map("( {} )".format),
        inner.map("{{ {}\n}}".format),
        inner.map(lambda c: f"bash -c {shlex.quote(c)}"),
        inner.map(lambda c: f'echo "$( {c} )"'),
        st.tuples(st.integers(0, 3), inner).map(lambda t: f"for i in $(seq {t[0]}); do {t[1]}\ndone"),
        st.tuples(st.integers(1, 3), inner).map(lambda t: f"for i in {{1..{t[0]}}}; do {t[1]}\ndone"),
        st.tuples(st.integers(0, 3), inner).map(lambda t: f"for ((i=0; i<{t[0]}; i++)); do {t[1]}\ndone"),
        inner.map("for i in a 'b c' \"d\"; do {}\ndone".format),
        inner.map("if true; then echo; fi; {} > /dev/null 2>&1".format),
        inner.map("{}\ncat <<EOF | cat\nsleep 77\nEOF\n:".format),
    )


simple = st.sampled_from(
    [
        "sleep 1",
        "sleep 2 3",
        "sleep '4'",
        "sleep 5 # sleep 6\n:",
        "echo sleep 7",
        "true",
        "X=1 sleep 8",
        "[ a ]",
    ]
)
programs = st.recursive(simple, _compound, max_leaves=6)


@needs_bash
@given(programs)
@settings(max_examples=60)
def test_bash_itself_sleeps_as_long(tmp_path_factory, command):
    log = tmp_path_factory.mktemp("bash") / "log"
    log.write_text("")
    record = f"""sleep() {{ printf '%s\\n' "$@" >> {log}; }}; export -f sleep\n"""
    subprocess.run([BASH, "-c", record + command], check=True, capture_output=True, timeout=30)
    slept = sum(map(int, log.read_text().split()))
    assert (sleep_seconds(command) or 0) == slept


HUGE = """( ) {_ ' " ` \\ $( $(( ${ (( [[_ if_ for_ sudo_-u_ A=1_ a| "$( x_$((a)_ x_(a_ x_[[_a_ sleep_1;
sh_-c_ a=(b_ exec_ #_ 0> <<A; cat_<<X;X;"""


@pytest.mark.parametrize("scrap", [h.replace("_", " ").replace(";", "\n") for h in HUGE.split()])
def test_huge_texts_are_read_once_and_nested_ones_not_for_ever(scrap):
    text = (scrap * shell.MAX_CHARS)[: shell.MAX_CHARS]
    assert sleep_seconds(text) in (None, *map(float, range(1, shell.MAX_CHARS)))
    assert classify(text) in CLASSES


def test_texts_too_long_or_too_deep_for_a_shell_are_unknown():
    assert sleep_seconds("sleep 1;" + "#" * shell.MAX_CHARS) is None
    assert classify("cat > f <<EOF\n" + "x" * shell.MAX_CHARS) == "edit"
    deepest = shell.MAX_DEPTH - 1
    assert sleep_seconds("( " * deepest + "sleep 1" + " )" * deepest) == 1
    assert sleep_seconds("( " * (deepest + 1) + "sleep 1" + " )" * (deepest + 1)) is None


PIECES = [
    "grep",
    "cd",
    "/a/b",
    "'q r'",
    '"s t"',
    "a'b'c",
    "&&",
    "||",
    "|",
    ";",
    "2>&1",
    "2>/dev/null",
    "sudo",
    "5",
]
PIECES += [
    "A=1",
    "!",
    "if",
    "#c",
    "{",
    "*.py",
    "--x=y",
    "$V",
    "[",
    "~",
    "bash",
    "-c",
    "'ls -l'",
    "",
    "=",
    "time",
]
PIECES += [
    "> out",
    ">>",
    "2>err",
    "&>all",
    "1>x",
    "$1",
    '"$V/x"',
    "${V}",
    "$?",
    "< in",
    ">/dev/null",
    "3>x",
    "a>b",
]
PIECES += ["<< 'EOF'\nimport x\nEOF", "<<EOF\nif (\nEOF\n", "cat > f.py << 'EOF'\nprint('x')\nEOF\n"]
PIECES += ["\\ ", "(", ")", "&", "\n", "'", '"', "2>&12", ">", "sleep", "timeout"]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=7), st.sampled_from([" ", "", "  "]))
@settings(max_examples=1000)
def test_plain_commands_are_read_as_the_parser_reads_them(pieces, between):
    command = between.join(pieces)
    parser = shell._Parser(command)
    try:
        parser.commands("")
    except shell._UnclearError:
        assert commands._plain(command) == []
    else:
        assert commands._plain(command) in ([], parser.programs)
        assert not (commands._plain(command) and parser.behind)
