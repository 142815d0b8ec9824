"""Shell completion of bash, zsh and fish and the manual pages contain everything that --help lists, and they work."""

import os
import pty
import re
import select
import subprocess
import time

import pytest
from daemon import QUIRE, QUIRED, ROOT


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=30, **options)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def options_of(help_text):
    names = set()
    for first in re.findall(r"^  (-\S+)", help_text, re.MULTILINE):
        names |= {re.sub(r"\{.*", "", name) for name in first.split(",")}
    return names


@pytest.fixture(scope="module")
def tree():
    """Returns {command: options} as --help lists them. "" is quire itself."""
    top = run(QUIRE, "--help")
    commands = re.findall(r"^  ([a-z-]+) ", top[top.index("Subcommands:"):], re.MULTILINE)
    assert {"generate", "bench", "completion"} <= set(commands)
    found = {name: options_of(run(QUIRE, name, "--help")) for name in commands}
    found[""] = options_of(top)
    assert all("--help" in options for options in found.values()) and "--arrival" in found["bench"]
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of the files that the build generates."""
    folder = tmp_path_factory.mktemp("manual")
    keys = ROOT / "configs" / "default.yaml"
    run(QUIRE, "manual", "--out", folder, "--date", "2026-01-31", "--keys", keys)
    for program in ("quire", "quired"):
        for shell in ("bash", "zsh", "fish"):
            printed = run(QUIRE, "completion", shell, "--program", program)
            assert (folder / f"{program}.{shell}").read_text() == printed
    assert run(QUIRE, "completion", "bash") == (folder / "quire.bash").read_text()
    return folder


# --- bash ------------------------------------------------------------------------------------------


def bash(made, *words, program="quire"):
    """Returns what bash offers for the last of `words`, which are split as readline splits them."""
    script = (
        f'source {made}/{program}.bash; COMP_WORDS=({program} "$@"); COMP_CWORD=$#; _{program}; '
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    return run("bash", "-uc", script, "bash", *words).split()


def test_bash_offers_everything_in_help(made, tree):
    assert set(bash(made, "")) == set(tree) - {""}
    assert set(bash(made, "-")) == tree[""]
    for command, options in tree.items():
        if command:
            assert set(bash(made, command, "-")) == options | tree[""], command


@pytest.mark.parametrize(
    "words, offered",
    [
        (["gen"], ["generate"]),
        (["generate", "--max"], ["--max-tokens"]),
        (["generate", "--max-tokens", ""], []),  # bash then offers file names
        (["bench", "--arrival", ""], ["poisson", "gamma", "constant"]),
        (["bench", "--arrival", "g"], ["gamma"]),
        (["bench", "--arrival", "=", "g"], ["gamma"]),
        (["bench", "--arrival", "="], ["poisson", "gamma", "constant"]),
        (["bench", "--arrival", "gamma", "--burst"], ["--burstiness"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["completion", "zsh", "--program", "="], ["quire", "quired"]),
        (["--address", "chat", "gen"], ["generate"]),  # the value of an option is not a command
        (["--address", "=", "127.0.0.1", ":", "1", "det"], ["detokenize"]),
        (["--json", "sta"], ["stats"]),
        (["generate", "chat", "--pieces"], []),  # neither is a prompt
        (["tokenize", "some text", "--pi"], ["--pieces"]),
        (["nonsense", "--pi"], []),
    ],
)
def test_bash_completes_by_position(made, words, offered):
    assert bash(made, *words) == offered


def test_bash_completes_quired(made):
    assert set(bash(made, "-", program="quired")) == options_of(run(QUIRED, "--help"))
    assert bash(made, "--print-effective-config", "=", "j", program="quired") == ["json"]
    assert bash(made, "--set", "", program="quired") == []


def test_bash_registers_the_function(made):
    assert run("bash", "-c", f"source {made}/quire.bash; complete -p quire").split()[-3:] == ["-F", "_quire", "quire"]
    # Registers the completion in a shell without startup files, as docs/operations.md describes.
    assert "_quire" in run("bash", "-c", f"source <({QUIRE} completion bash); complete -p quire")


# --- fish and zsh ----------------------------------------------------------------------------------


def fish(made, line, tmp_path, program="quire"):
    command = f'source {made}/{program}.fish; complete -C "{line}"'
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    lines = run("fish", "-c", command, env=environment, cwd=tmp_path).splitlines()
    return {line.split("\t")[0] for line in lines}


def test_fish_offers_everything_in_help(made, tree, tmp_path):
    assert fish(made, "quire ", tmp_path) == set(tree) - {""}
    for command, options in tree.items():
        long_ones = {name for name in options | tree[""] if name.startswith("--")}
        assert fish(made, f"quire {command} --", tmp_path) == (long_ones if command else tree[""] - {"-h"}), command


def test_fish_completes_values(made, tmp_path):
    assert fish(made, "quire bench --arrival ", tmp_path) == {"poisson", "gamma", "constant"}
    assert fish(made, "quire completion ", tmp_path) >= {"bash", "zsh", "fish"}
    assert fish(made, "quired --val", tmp_path, program="quired") == {"--validate"}
    (tmp_path / "prompt.txt").write_text("x")
    assert "prompt.txt" in fish(made, "quire chat --messages pro", tmp_path)


def zsh(made, typed, tmp_path, wanted, program="quire"):
    """Types into a real zsh with a terminal and reads until `wanted` is displayed."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {"HOME": str(tmp_path), "TERM": "dumb", "PATH": os.environ["PATH"]})
    try:
        setup = "PS1='> '; autoload -U compinit; compinit -D -u; unsetopt zle_bracketed_paste; setopt nobeep; "
        os.write(terminal, f"{setup} source {made}/{program}.zsh; echo READY''YET\n".encode())
        shown = read_until(terminal, "READYYET")
        os.write(terminal, typed.encode() + b"\t")
        return shown + read_until(terminal, wanted)
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


def read_until(terminal, wanted, timeout=20):
    shown, end = "", time.monotonic() + timeout
    while wanted not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|[\r\b]", "", shown):
        ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
        assert ready, f"not shown: {wanted!r}, but {shown!r}"
        shown += os.read(terminal, 4096).decode(errors="replace")
    return shown


@pytest.mark.parametrize(
    "typed, wanted",
    [
        ("quire gener", "quire generate "),
        ("quire generate --max-t", "quire generate --max-tokens"),
        ("quire --address=h:1 bench --arrival=ga", "--arrival=gamma"),
        ("quire completion fi", "quire completion fish"),
    ],
)
def test_zsh_completes(made, tmp_path, typed, wanted):
    zsh(made, typed, tmp_path, wanted)


def test_zsh_accepts_every_specification(made, tree):
    for program in ("quire", "quired"):
        run("zsh", "-n", made / f"{program}.zsh")
    text = (made / "quire.zsh").read_text()
    for command, options in tree.items():
        assert not command or f"        {command}) _arguments" in text
        for name in options:
            assert re.search(rf"'\*{name}[=+\[]", text), (command, name)


# --- manual pages ----------------------------------------------------------------------------------


def page(path):
    """Returns the page as a terminal displays it, without overstriking."""
    return re.sub(r".\x08", "", run("mandoc", "-T", "utf8", "-O", "width=400", path)).replace("\u2010", "-")


def test_manual_pages_pass_mandoc_lint(made):
    for name in ("quire.1", "quired.8"):
        assert run("mandoc", "-T", "lint", "-W", "warning", made / name) == ""


def test_quire_manual_has_everything_in_help(made, tree):
    text = page(made / "quire.1")
    parts = re.split(r"^   ([a-z-]+)$", text, flags=re.MULTILINE)
    sections = {"": parts[0], **dict(zip(parts[1::2], parts[2::2]))}
    assert set(sections) == set(tree)
    for command, options in tree.items():
        for name in options - (tree[""] if command else set()):
            assert re.search(rf"(^|[ ,]){name}\b", sections[command], re.MULTILINE), (command, name)
    for line in re.findall(r"^  --\S+(?: \S+)*?  +(.*)", run(QUIRE, "generate", "--help"), re.MULTILINE):
        assert line in text


def test_quired_manual_has_options_exit_codes_signals_and_keys(made):
    text = page(made / "quired.8")
    for name in options_of(run(QUIRED, "--help")):
        assert re.search(rf"(^|[ ,]){name}\b", text), name
    operations = (ROOT / "docs" / "operations.md").read_text()
    codes = re.findall(r"^\| (\d+) \|", operations[operations.index("## Exit codes"):], re.MULTILINE)
    assert len(codes) >= 6 and all(re.search(rf"^ +{code} ", text, re.MULTILINE) for code in codes)
    for signal in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"):
        assert signal in text
    shown = {line.strip() for line in text.splitlines()}
    for line in (ROOT / "configs" / "default.yaml").read_text().splitlines():
        assert line.strip() in shown, line


def test_manual_pages_do_not_depend_on_the_machine(made, tmp_path):
    folder = tmp_path / "runtime" / "quire"
    for path in (folder.parent, folder, tmp_path / "out"):
        path.mkdir(mode=0o700)
    (folder / "admin.sock").touch()
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder.parent)}
    if not os.path.exists("/run/quire/admin.sock"):
        assert f"unix:{folder}/admin.sock" in run(QUIRE, "--help", env=environment)
    keys = ROOT / "configs" / "default.yaml"
    run(QUIRE, "manual", "--out", tmp_path / "out", "--date", "2026-01-31", "--keys", keys, env=environment)
    assert {file.name: file.read_text() for file in (tmp_path / "out").iterdir()} == {
        file.name: file.read_text() for file in made.iterdir()
    }


def test_hidden_writer_reports_errors(tmp_path):
    for folder, keys in ((tmp_path / "none", ROOT / "configs" / "default.yaml"), (tmp_path, tmp_path / "none")):
        command = [str(QUIRE), "manual", "--out", str(folder), "--date", "2026-01-31", "--keys", str(keys)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode == 1 and "none" in done.stderr
