"""What uplinks save and cost: accuracy against bytes, a markdown table.

    python benchmarks/uplinks.py

Digits, turned in four ways (rotation-4), 12 clients, 10 rounds, seeds 100 to 102; mean and standard deviation over
seeds. Bytes are those that all clients sent in the phase of training.
"""

from statistics import mean, stdev

import umbel

METHODS = ("flag", "fedavg")
CHAINS = ("", "quantise:16", "quantise:8", "topk:0.3", "topk:0.1", "topk:0.1+quantise:8")
SEEDS = (100, 101, 102)


def one(method: str, chain: str, seed: int) -> tuple[float, float, int]:
    """Accuracy in per cent, agreement with the true groups, bytes sent while training."""
    fed = umbel.simulate("digits", scenario="rotation-4", clients=12, seed=seed, device="cpu")
    result = umbel.run(method, fed, rounds=10, eval_every=10, fine_tune=0, uplink=chain)
    up = sum(sum(record["bytes"].get("train", {}).get("up", {}).values()) for record in result.records)
    return 100 * result.accuracy, result.info["clusters"]["ari"], up


def main() -> None:
    """Run all and print the table."""
    print("| method | uplink | accuracy (%) | ARI | MB up in training | of those without |\n|---|---|---|---|---|---|")
    for method in METHODS:
        whole = None
        for chain in CHAINS:
            scores, agreement, sent = zip(*(one(method, chain, seed) for seed in SEEDS), strict=True)
            whole = whole or mean(sent)
            words = f"`{chain}`" if chain else "none"
            print(f"| {method} | {words} | {mean(scores):.2f} ± {stdev(scores):.2f} | {mean(agreement):.2f} |"
                  f" {mean(sent) / 1e6:.2f} | {100 * mean(sent) / whole:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
