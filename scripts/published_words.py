"""The words of docs/published.md, which scripts/published.py fills with figures."""

TRIED = (
    "Steps of less than a second are listed above and not in the bands: there launches and latencies decide. The runs of"
    " B200s are of one machine and one program, so their band has the width of the first. Tried on runs that were used"
    " for nothing: every run with the band of the other sources of its row above, and a run of a B200 with that of the"
    " others."
)

MEMORY_CAUSES = """- *ZB-1p* is a list that the program's generator searches for each model within the bytes of p microbatches on every
  stage (`max_mem=p * mem_f`; megatron/core/pipeline_parallel/efficiency.py and auto_schedule.py on branch `arxiv` of
  sail-sg/zero-bubble-pipeline-parallelism, f68d3879). ZB-D with delay p-1, which replaces it here, holds p-1
  microbatches and one W on stage 1. That generator, given the times of table 9, holds p-1 and one or two: with 6.2B and
  m = 64 two, which are the +3 GiB that were measured.
- *14.6B p24* and *28.3B b2*: +2 and +4 GB for ZB-1p. Two Ws bring +1.2 and +1.5, and p whole microbatches, which the
  generator never exceeds, +1.4 and +1.7. The rest is not in its list. One part may be the optimizer: with
  `--enable-optimizer-post-validation` fp32 gradients, 2.3 and 3.4 GiB, stay until the next step's first forwards have
  run. Commit 87ce0c2e recomputes them "to avoid higher peak memory".
- *V-Half, V = 128k* is -1.0 of -1.4 GiB, between two figures of 29 GiB that are 1.2 and 2.5 % too small."""

PAGE = """# Plans against published measurements

After this page you can say how far to trust a plan's step time and memory: within some per cent where two schedules are
compared, with the band below where the absolute figure counts. `scripts/published.py --write docs/published.md` wrote
it from `test/plan/published.json`: runs of dense models in 16 bit whose settings are public, with their sources, each
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
waits for, where their time is published. The entries `program` of `test/plan/published.json` say which source has
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

`--plan` and `--search` print, next to the planned step, the band in which four of five of these runs lie:

@BANDS@

`hardware.run_share` scales the kernels' rates, for runs that are known to reach a part of them; the default is 1. On
A100s 0.83 brings the plan to the middle of these runs. That figure is fitted: left out one source at a time, it is as
far off as the middle above.

## Schedules against each other

What BPipe and its rivals bring is a ratio of two step times, in which most of that cancels out.

@PAIRS@

In *zero bubble* messages between stages are not overlapped with compute (`--no-overlap-p2p-communication`), which this
trainer never does: the column *planned* adds two messages for each microbatch and chunk, of the time that the paper's
table 9 gives for one. *error without messages* is the plan as it is: 1F1B-I, with most messages, then comes out up to
7.4 % too quick. Of 6.2B with p=16, 14.6B with p=24 and 28.3B with b=2 no message time is published, and none is added.

## Memory

A plan's bytes are those of this trainer, which has no dropout and keeps no masks. To hold other programs against the
schedules planned here, `--json` counts what each stage of the measured program (all are made
of Megatron-LM's code) has at its fullest while it executes the planned list:

- *parameters*: 16 bytes (fp16 weights and gradients, fp32 copy, two moments).
- *a layer of a microbatch*, by Korthikanti et al. (arXiv 2205.05198): 34 s b h + 5 a s^2 b with dropout and stored
  attention, of which 32 s b h stay from I to W; 32 s b h with flash attention and without dropout.
- *the head of a microbatch*: logits in fp32, 4 s b V, from F to B or I, with 2 s b V in fp16 beside them while either
  runs, and after I their gradient, 2 s b V, until W (`_VocabParallelCrossEntropy`, `gpt_model.py`).
- *embedding and output matrix*: while their gradient is computed a second one in fp16, 2 V h (that of `F.embedding`;
  the one that `LinearWithGradAccumulationAndAsyncCommunication` returns, although it also adds to `main_grad`).

GB of these sources are 2^30 bytes, as far as they say. BLOOM's are what nvidia-smi showed, allocator's cache included.

@MEMORY@

Whether a layout fits in 80 GB with 4 GiB in reserve, against the runs of *layouts*:

@LIMITS@

These runs keep gradients in bf16 (2 bytes a parameter where this trainer has 4), and more of each layer's activations:
with few ranks to share states the plan is too large, with long sequences too small.

## Sources

`scripts/published.py --json` prints every run: measured, planned, and as its program.

@SOURCES@
"""
