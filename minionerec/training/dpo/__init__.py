"""S-DPO (Chen et al., "On Softmax Direct Preference Optimization for Recommendation", 2024).

One slice, P prompts with a target and N negatives each:

    negatives.py   (seed, epoch, row) ─▶ N SIDs that are not the target's            (P, N)
                     │
    trainer.py       ▼   completions: the target's first, then the negatives'        (P, 1 + N)
                   one pass over each prompt for all of them, under the policy and under the frozen start
                     │
    loss.py          ▼   log-ratios of whole completions ─▶ loss                     (P,)

    stage.py       loads, builds, trains, keeps the best weights; config.py has its settings
"""
