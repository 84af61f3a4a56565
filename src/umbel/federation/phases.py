"""What clients are asked for: one word with four jobs, seed stream, ledger line, stopwatch and progress text."""

PREPARE = "prepare"  # sums by which a table is scaled and filled in, before anything is learnt
TRAIN = "train"  # a round's training
SIGNATURE = "signature"  # a description by which clients are grouped
SWEEP = "sweep"  # short trainings by which a cut is chosen
SPLIT = "split"  # members of a cluster that is about to be parted, asked beside the cohort
ADMIT = "admit"  # placing who has no cluster yet
EVALUATE = "evaluate"  # scores on validation or test rows; its bytes stand apart, since real federations may do without
CLUSTERING = "clustering"  # the server's own work of grouping: nobody is asked, only time is spent
