"""The fairest simple opponent: FedAvg as a sequential torch loop, without a library."""

import time

import torch
from work import asked, epoch, images, network, tell

if __name__ == "__main__":
    job = asked()
    torch.set_num_threads(job["threads"])
    data = [images(job["shape"], job["rows"], seed) for seed in range(job["clients"])]
    server, seconds = network(job["model"], job["shape"]), []
    for _ in range(job["rounds"] + 1):
        started = time.perf_counter()
        start = {name: leaf.clone() for name, leaf in server.state_dict().items()}
        total = {name: torch.zeros_like(leaf) for name, leaf in start.items()}
        for x, y in data:
            server.load_state_dict(start)
            epoch(server, x, y, job["batch"])
            for name, leaf in server.state_dict().items():
                total[name] += leaf
        server.load_state_dict({name: leaf / len(data) for name, leaf in total.items()})
        seconds.append(time.perf_counter() - started)
    tell(seconds)
