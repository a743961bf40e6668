"""`torchrun` on two hosts: network namespaces that share nothing but a cable."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import unalike as ua
from unalike._utils.tensor_files import read_tensors

FLAGS = [
    "--data",
    "digits",
    "--clients",
    "6",
    "--model",
    "mlp(hidden=(8,))",
    "--rounds",
    "5",
    "--executor",
    "loop",
]
SETUP = """
set -e
ip link set lo up
unshare -n sleep 600 &
other=$!
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.05; done
ip link add near type veth peer name far netns $other
ip addr add 10.99.0.1/24 dev near
ip link set near up
nsenter -t $other -n sh -c "ip link set lo up; ip addr add 10.99.0.2/24 dev far; ip link set far up"
"""
RUN = """
host() { node=$1; shift; torchrun="$PYTHON -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --node-rank $node \
    --master-addr 10.99.0.1 --master-port 29500"; }
host 1; nsenter -t $other -n $torchrun -m unalike run "$@" &
second=$!
host 0; $torchrun -m unalike run "$@"
wait $second
"""


ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(Path(ua.__file__).parents[1]),
    "PYTHON": sys.executable,
}


def two_hosts(*flags, commands=RUN, timeout=200):
    """What the commands say inside of the first of two hosts; all processes are gone afterwards."""
    process = subprocess.Popen(
        [
            "unshare",
            "-rnpf",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
            SETUP + commands,
            "sh",
            *flags,
        ],
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        process.wait(timeout)
    finally:
        process.kill()  # and with it all others, whichever session they began
        output = process.communicate()[0]
    return process.returncode, output


@pytest.fixture(scope="module", autouse=True)
def namespaces():
    missing = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no two hosts can be made here: {', '.join(missing)} is not installed")
    code, output = two_hosts(commands="", timeout=20)
    if code:
        pytest.skip(f"no two hosts can be made here: {output.strip()[-200:]}")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scaffold", pytest.param("fedlws", marks=pytest.mark.network)])
def test_torchrun_on_two_hosts_equals_one_process_and_repeats_bitwise(method, tmp_path):
    """Sums, memories and single reports cross the cable; the same command gives the same bits again."""
    found = {}
    for name in ("joined", "again"):
        code, output = two_hosts("--method", method, *FLAGS, "--out", str(tmp_path / name))
        assert code == 0, output
        found[name] = read_tensors(tmp_path / name / "model.safetensors")[0]
        assert "2 processes" in (tmp_path / name / "events.jsonl").read_text()
    alone = ["-m", "unalike", "run", "--method", method, *FLAGS, "--out", str(tmp_path / "alone")]
    subprocess.run(
        [sys.executable, *alone], env=os.environ | ENVIRONMENT, check=True, capture_output=True
    )
    whole = read_tensors(tmp_path / "alone" / "model.safetensors")[0]
    for n, mine in found["joined"].items():
        torch.testing.assert_close(mine, whole[n], rtol=1e-5, atol=1e-6)  # sums in another order
        assert torch.equal(mine, found["again"][n])
