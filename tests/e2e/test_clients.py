"""Real clients of OpenAI's API that have environments of their own: litellm, langchain-openai, instructor."""

import os
import pathlib
import subprocess

import pytest
from daemon import ROOT, Daemon, has_structured_output
from test_openai import listening
from test_smollm2 import MODEL

CLIENTS = pathlib.Path(__file__).parent / "clients"
PYTHON = ROOT / "build" / "clients" / "bin" / "python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=f"{PYTHON} is missing; scripts/test makes it")


def start(folder, *settings):
    folder.mkdir()
    return Daemon(folder, settings=settings)


def base_url(running):
    running.wait_serving()
    return f"http://{listening(running)['openai']}/v1"


def run(script, *urls):
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # without it litellm downloads a file
    done = subprocess.run([PYTHON, CLIENTS / script, *urls], capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0 and "done" in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]


def test_litellm_raises_its_exceptions_and_falls_back(api, tmp_path):
    template = tmp_path / "plain.jinja"
    template.write_text("{{ messages[-1].content }}")
    chat = f"chat.template_file={template}"
    with (
        start(tmp_path / "short", chat, "model.max_context_tokens=128") as short,
        start(tmp_path / "long", chat) as long,
        start(tmp_path / "draining", chat, "shutdown.pre_drain_delay=0s") as draining,
    ):
        urls = [base_url(one) for one in (short, long, draining)]
        with draining.admin_channel() as channel:
            api.AdminServiceStub(channel).Drain(api.DrainRequest(), timeout=10)
        run("litellm_calls.py", *urls)


@pytest.mark.skipif(not has_structured_output(), reason="the build has no structured output")
@pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL} is missing; scripts/fetch_smollm2 gets it")
def test_langchain_and_instructor_get_objects_and_tool_calls(tmp_path):
    settings = [f"model.path={MODEL}", "model.id=smollm2", "chat.tool_format=generic"]
    with start(tmp_path / "one", *settings) as running:
        run("structured_calls.py", base_url(running))
