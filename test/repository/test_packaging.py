"""make install, make uninstall and make dist; the same version everywhere; the container image and the CI workflow of
a forge."""

import os
import re
import sys
import tarfile
from pathlib import Path

import pytest
from trainer_runs import BUILD, FAMILIES, ROOT, command, environment, execute

VERSION = re.search(r'#define VERSION +"(\d+\.\d+\.\d+)"', (ROOT / "src/base/version.h").read_text())[1]
NAME = "bpipe-trainer"


def make(*arguments, cwd=ROOT, code=0, **changes):
    """Runs make as from a shell, without variables of the make that started these tests."""
    inherited = {name: value for name, value in environment().items() if not name.startswith(("MAKE", "MFLAGS"))}
    return execute(["make", *arguments], cwd=cwd, env={**inherited, **changes}, code=code)


needs_git = pytest.mark.skipif(execute(["git", "rev-parse"], code=None).code != 0,
                               reason="no git checkout: make dist packs what git knows")
built_here = pytest.mark.skipif(BUILD not in (ROOT, ROOT / "build/release"), reason="tests a build of another kind")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_version_is_one_everywhere(family):
    assert command(family, "--version").stdout.splitlines()[0] == f"train_{family} {VERSION}"
    assert f'"version":"{VERSION}"' in command(family, "--help-config", "--json").stdout.splitlines()[0]
    others = execute(["grep", "-rlF", f'"{VERSION}"', "Makefile", "make", "src", "scripts", "train_gpt.cu",
                             "train_llama.cu"])
    assert others.stdout.split() == ["src/base/version.h"]


def test_the_changes_begin_with_this_version():
    newest = re.search(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    date = re.search(r'#define VERSION_DATE +"(\S+)"', (ROOT / "src/base/version.h").read_text())[1]
    assert (newest[1], newest[2]) == (VERSION, date)


# ---- install ---------------------------------------------------------------------------------------------------------


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


@pytest.mark.thorough
@built_here
def test_what_is_installed_trains_from_an_empty_folder_and_uninstall_leaves_nothing(tmp_path):
    stage, work = tmp_path / "stage", tmp_path / "work"
    work.mkdir()
    where = [f"DESTDIR={stage}", "PREFIX=/opt/bpipe"]
    installed = make("install", *where)
    place = stage / "opt/bpipe"
    found = files_in(place)
    for family in FAMILIES:
        assert {f"bin/train_{family}", f"share/man/man1/train_{family}.1",
                f"share/bash-completion/completions/train_{family}", f"share/zsh/site-functions/_train_{family}",
                f"share/{NAME}/configs/{family}_tiny.yaml"} <= set(found)
        page = (place / f"share/man/man1/train_{family}.1").read_text()
        assert page.startswith(f".TH TRAIN_{family.upper()} 1 ")
    assert {
        f"share/doc/{NAME}/README.md", f"share/doc/{NAME}/LICENSE", f"share/doc/{NAME}/docs/configuration.md"
    } <= set(found)
    assert files_in(stage) == [f"opt/bpipe/{name}" for name in found]

    (work / "text.txt").write_text("in the beginning was the word\n" * 3000)
    prepared = execute([sys.executable, place / f"share/{NAME}/scripts/prepare_data.py", "text.txt", "-o",
                               "data", "--name", "bible"], cwd=work)
    trained = execute([place / "bin/train_llama", "-c", place / f"share/{NAME}/configs/llama_tiny.yaml"]
                             + ["-o", "parallel.pipeline=1", "-o", "schedule.bpipe=off", "-o", "train.steps=1", "-o",
                                "data.val_every=0"] + ["-o", "checkpoint.every=0"], cwd=work)
    assert re.search(r"^step +1/1 \| loss", trained.stdout, re.M), trained.stderr

    make("uninstall", *where)
    assert files_in(stage) == []


# ---- dist ------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@needs_git
def test_the_tarball_builds_without_git_and_is_the_same_bytes_each_time(tmp_path):
    tarball = tmp_path / f"{NAME}-{VERSION}.tar.gz"
    for _ in range(2):
        before = tarball.read_bytes() if tarball.exists() else None
        packed = make("-s", "dist", f"BUILD={tmp_path}")
        assert packed.stdout == f"{tarball}\n", packed.stderr
    assert tarball.read_bytes() == before
    with tarfile.open(tarball) as archive:
        archive.extractall(tmp_path)
    source = tmp_path / f"{NAME}-{VERSION}"
    tracked = execute(["git", "ls-files"]).stdout.split()
    assert files_in(source) == sorted(tracked)

    # A fake git that fails and records its calls: building a tarball must not call git.
    tools, called = tmp_path / "tools", tmp_path / "called"
    tools.mkdir()
    (tools / "git").write_text(f'#!/bin/sh\necho "$@" >> {called}\nexit 1\n')
    (tools / "git").chmod(0o755)
    without = {"PATH": f"{tools}:{os.environ['PATH']}", "GIT_DIR": "/nowhere"}
    built = make("-j2", "OPT=-O0", "programs", cwd=source, **without)
    assert not called.exists()
    for family in FAMILIES:
        said = execute([source / f"train_{family}", "--version"])
        assert said.stdout.splitlines()[0] == f"train_{family} {VERSION}"
    refused = make("dist", cwd=source, code=2, **without)
    assert "this is not a git checkout" in refused.stderr


# ---- an image, and the CI of a forge ---------------------------------------------------------------------------------


def test_the_image_copies_what_is_there_and_runs_what_shells_and_make_understand():
    lines = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text()).splitlines()
    steps = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    assert steps[0][0] == "FROM" and re.fullmatch(r"nvidia/cuda:13\.\d+\.\d+-cudnn-devel-ubuntu\d\d\.04", steps[0][1])
    for kind, text in steps:
        if kind == "COPY":
            assert all((ROOT / name).exists() for name in text.split()[:-1]), text
        if kind == "RUN":
            execute(["bash", "-n", "-c", text])
            assert all(os.access(ROOT / word, os.X_OK) for word in re.findall(r"scripts/\S+", text)), text
            for goals in re.findall(r"\bmake ([^&;]+)", text):
                make("-n", *goals.split(), "CUDA=0")
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not any(Path(name).parts[0] in ("src", "scripts", "configs", "Makefile", "make") for name in ignored)


def test_the_forge_runs_the_same_script_as_we_do(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / ".deps/transformers")  # contains a YAML parser
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    for job in workflow["jobs"].values():
        assert [step for step in job["steps"] if step.get("run") == "bash .ci/run"]
    assert (ROOT / ".ci/run").exists()
