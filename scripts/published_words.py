"""The text of docs/published.md; scripts/published.py inserts the figures."""

TRIED = (
    "Steps of less than a second are listed above and not in the bands: there launches and latencies decide. The runs of"
    " B200s are of one machine and one program, so their band has the width of the first. Tried on runs that were used"
    " for nothing: every run with the band of the other sources of its row above, and a run of a B200 with that of the"
    " others."
)

MEMORY_CAUSES = """- *ZB-1p* is a list that the program's generator searches for each model within the bytes of p microbatches on every
  stage. ZB-D with delay p-1, which replaces it here, holds p-1 microbatches and one W on stage 1; the generator holds
  one or two Ws there, which are the +3 GiB of 6.2B and m = 64.
- *14.6B p24* and *28.3B b2*: +2 and +4 GB for ZB-1p, where p microbatches, the generator's limit, bring +1.4 and +1.7.
  One part may be the fp32 gradients that `--enable-optimizer-post-validation` keeps, 2.3 and 3.4 GiB.
- *V-Half, V = 128k* is -1.0 of -1.4 GiB, between two figures of 29 GiB that are 1.2 and 2.5 % too small."""

PAGE = """# Plans against published measurements

After this page you can say how far to trust a plan's step time and memory: within some per cent where two schedules are
compared, with the band below where the absolute figure counts. `scripts/published.py --write docs/published.md` wrote
it from `scripts/published.json`: runs of dense models in 16 bit with public settings, with their sources, each
planned as `--plan` plans any configuration for the GPUs that it names. Nothing in the planner is fitted to these runs,
none of which used this trainer.

    scripts/published.py                            every run: planned, measured, error
    scripts/published.py --only "zero bubble"       those of one source

![planned against measured](img/published.svg)

## Step times

@SUMMARY@

*This engine would take*: the plan as `--plan` makes it, of kernels at their measured rates without gaps. *With that
program's passes, sums, messages* adds what the measured program does and this engine does not, counted from its code
and not fitted: dropout and its masks, the passes of unfused biases, norms and transposes, 46 bytes a logit of the cross
entropy (`_VocabParallelCrossEntropy` in fp32), all-reduces of gradients after the pipeline, and messages that compute
waits for, where their time is published. The entries `program` of `scripts/published.json` say which source has
which.

What remains: launches and gaps, ranks that wait for the slowest, clocks under load. The worst:

- *vTrain, t=2 and 39.1B*: runs with two tensor ranks take 1.3 to 1.7 times as long as their neighbours. The cause is
  not known; messages and sums are far too small.
- *layouts, 30B with t=1, p=4, d=64*: sums of gradients over 64 ranks and 32 nodes whose network is not published.
- *B200*: its machine's own products reach 0.49 of the peak, and the table that plans use 0.61.
- *MPT* and *torchtitan*: these runs gather every weight from all ranks (FSDP); torchtitan's H100s are limited to 500 W.
- *nanotron*: up to 64 nodes share 1 M tokens a step, so that sums of gradients decide, which it makes after the
  pipeline; 80B on 4 nodes takes 3.4 times as long as planned, and 4.2 times as long as on twice the nodes.

## The band

`--plan` and `--search` print this band next to the planned step: four of five runs lie in it. Two kinds of plan have a
narrower one: those of one Hopper GPU alone, and those from a profile ([planning.md](planning.md)).

@BANDS@

`hardware.run_share` scales the kernels' rates, for runs that are known to reach a part of them; the default is 1. On
A100s 0.85 brings the plan to the middle of these runs. That figure is fitted: left out one source at a time, it is as
far off as the middle above. On H100s *nanotron* has 25 of the 43 runs, which spread more than the others; no cause
is known.

## Schedules against each other

What BPipe and its rivals bring is a ratio of two step times, in which most of that cancels out.

@PAIRS@

In *zero bubble* compute waits for messages between stages (`--no-overlap-p2p-communication`), which this trainer never
does: the column *errors* adds two messages for each microbatch and chunk, of the time in the paper's table 9 where it
has one. The last column is the plan as it is.

## Memory

A plan's bytes are those of this trainer, which has no dropout and keeps no masks. To compare other programs with the
schedules planned here, `--json` counts the bytes that each stage of the measured program (all are made of Megatron-LM's
code) holds while it executes the planned list: 16 bytes a parameter, a layer of a microbatch by Korthikanti et al.
(arXiv 2205.05198), fp32 logits from F to B or I and their gradient until W, and a second gradient of the embedding and
output matrix while it is computed (`held` in `scripts/published.py`).

@MEMORY@

Whether a layout fits in 80 GB with 4 GiB in reserve, against the runs of *layouts*:

@LIMITS@

The plan is too large where few ranks share states, since these runs keep gradients in bf16 (here: fp32), and too small
with long sequences, where they keep more of each layer's activations.

## Sources

`scripts/published.py --json` prints every run: measured, planned, and as its program. `derived` in
`scripts/published.json` says which settings are not in the source itself, and where they come from.

@SOURCES@
"""
