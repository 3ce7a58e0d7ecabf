"""Times a step of models with random weights in one process and in several that split it, in turn, and computes the
speed-up over slower links from the bytes that they exchange.

    python scripts/bench/split.py --gomflux bin/gomflux --models z-image flux.1-dev qwen-image    # two NVIDIA GPUs, NCCL
    python scripts/bench/split.py --gomflux bin/gomflux --backend ring --device cpu --size 64 --models models/testdata/...
    python scripts/bench/split.py ... --split passes --size 2048 --processes 4 --json out.json
    unshare -rn sh -c 'ip link set lo up && python scripts/bench/split.py --backend ring ... --throttle 0.1 1'

--throttle times the step over slower links too: in a network of its own, as of unshare, whose loopback tc limits to the
bandwidth that every process receives, times their number.
"""

import argparse
import json
import os
import socket
import subprocess
import tempfile

LINKS = (1, 2.5, 5, 10, 20, 40, 80)  # Gb/s


def ports(n):
    """Ports that nothing listens on."""
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    found = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return found


def environments(backend, n, folder):
    """The variables with which MLX joins the processes, one GPU for each with NCCL."""
    free = ports(n)
    if backend == "nccl":
        common = {"MLX_WORLD_SIZE": str(n), "NCCL_HOST_IP": "127.0.0.1", "NCCL_PORT": str(free[0])}
        return [{**common, "MLX_RANK": str(rank), "CUDA_VISIBLE_DEVICES": str(rank)} for rank in range(n)]
    hosts = os.path.join(folder, "hosts.json")
    with open(hosts, "w") as f:
        json.dump([[f"127.0.0.1:{port}"] for port in free], f)
    return [{"MLX_RANK": str(rank), "MLX_HOSTFILE": hosts} for rank in range(n)]


def bench(command, environments):
    """The report of rank 0."""
    processes = [
        subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True) for env in environments
    ]
    try:
        outputs = [p.communicate()[0] for p in processes]
    finally:
        for p in processes:
            p.kill()
    if any(p.returncode for p in processes):
        raise SystemExit(f"exit status {[p.returncode for p in processes]}: {' '.join(command)}")
    return json.loads(outputs[0])


def step(report):
    return next(phase["steady_s"] for phase in report["phases"] if phase["name"] == "step")


def throttle(gbps):
    """Limits what passes the loopback of all processes together."""
    burst = max(200_000, int(gbps * 1e6))  # bytes: 8 ms, and more than a packet of the loopback, which would be dropped
    subprocess.run(["tc", "qdisc", "replace", "dev", "lo", "root", "tbf", "rate", f"{int(gbps * 1e6)}kbit",
                    "burst", str(burst), "latency", "100ms"], check=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gomflux", required=True)
    p.add_argument("--backend", choices=("nccl", "ring"), default="nccl")
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--split", choices=("passes", "sequence"), default="sequence")
    p.add_argument("--throttle", type=float, nargs="+", default=[], help="bandwidths in Gb/s")
    p.add_argument("--json", help="write all reports to this file")
    p.add_argument("--models", nargs="+", required=True)
    o, flags = p.parse_known_args()  # other flags are for gomflux bench
    reports = []
    print("model", "1 process", f"{o.processes}", "ratio", "MB a step", *(f"at {link} Gb/s" for link in LINKS), sep="\t")
    for model in o.models:
        command = [o.gomflux, "bench", "--random", model, "--json", "--quiet", *flags]
        with tempfile.TemporaryDirectory() as folder:
            one = bench(command, [{"CUDA_VISIBLE_DEVICES": "0"} if o.backend == "nccl" else {}])
            many = bench([*command, "--split", o.split], environments(o.backend, o.processes, folder))
        reports += [one, many]
        alone, together, exchanged = step(one), step(many), many["exchanged_bytes"]
        ratios = [alone / (together + 8e-9 * exchanged / link) for link in LINKS]
        print(model, f"{alone:.4g} s", f"{together:.4g} s", f"{alone / together:.2f}", f"{exchanged / 1e6:.1f}",
              *(f"{r:.2f}" for r in ratios), sep="\t", flush=True)
        for link in o.throttle:
            throttle(o.processes * link)
            with tempfile.TemporaryDirectory() as folder:
                slow = bench([*command, "--split", o.split], environments(o.backend, o.processes, folder))
            reports.append(slow)
            print(f"  at {link} Gb/s: {step(slow):.4g} s, ratio {alone / step(slow):.2f}, computed "
                  f"{alone / (together + 8e-9 * exchanged / link):.2f}", flush=True)
        if o.throttle:
            subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=True)
    if o.json:
        with open(o.json, "w") as f:
            json.dump(reports, f)


if __name__ == "__main__":
    main()
