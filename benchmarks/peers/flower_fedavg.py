"""Flower's simulation (Ray, one actor a core) on the same work: FedAvg by hand over its message API."""

import os
import sys
import time

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0",
               "RAY_DEDUP_LOGS": "0", "PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from work import asked, epoch, images, network, tell

JOB = asked() if len(sys.argv) > 1 else {}
client, server = ClientApp(), ServerApp()
HELD: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # what an actor has drawn already


@client.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    me = int(context.node_config["partition-id"])
    if me not in HELD:
        HELD[me] = images(JOB["shape"], JOB["rows"], me)
    module = network(JOB["model"], JOB["shape"])
    module.load_state_dict(message.content["model"].to_torch_state_dict())
    epoch(module, *HELD[me], JOB["batch"])
    return Message(RecordDict({"model": ArrayRecord(module.state_dict())}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    model, seconds = network(JOB["model"], JOB["shape"]).state_dict(), []
    while len(list(grid.get_node_ids())) < JOB["clients"]:
        time.sleep(0.1)
    for r in range(JOB["rounds"] + 1):
        started = time.perf_counter()
        content = RecordDict({"model": ArrayRecord(model)})
        replies = list(grid.send_and_receive([Message(content, node, "train", group_id=str(r))
                                              for node in grid.get_node_ids()]))
        states = [reply.content["model"].to_torch_state_dict() for reply in replies if not reply.has_error()]
        if len(states) < JOB["clients"]:
            raise RuntimeError(f"{JOB['clients'] - len(states)} clients did not answer")
        model = {name: sum(state[name] for state in states) / len(states) for name in model}
        seconds.append(time.perf_counter() - started)
    tell(seconds)


if __name__ == "__main__":
    run_simulation(server, client, JOB["clients"],
                   backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                                   "init_args": {"num_cpus": JOB["workers"], "include_dashboard": False}})
