"""GRPO on ranked SIDs (Kong et al., "MiniOneRec", 2025; Shao et al., "DeepSeekMath", 2024).

One step, P prompts with G completions each:

    rollouts.py    prompt, target, tail, history               P rows
                     │
                     ▼   beam search over the trie
                   Rollouts: sids (P, G), targets (P,), scores (P, G)
                     │
    ../rewards.py  ┌─┴────────────▶ rewards (F, P, G) ─▶ weighted sum (P, G) ─▶ advantages (P, G), which groups matter
                   │                                                              │
    loss.py        ├─▶ log-probabilities under the reference (P * G, C)           │    no gradient
                   │                       │                                      │
                   ├─▶ log-probabilities under the policy (P * G, C)              │    slice by slice
                   │   and of the targets (P, T)           ▼                      ▼
                   └──────────────▶ loss and KL of each slice ─▶ gradient ─▶ the optimiser's step
                                    and the likelihood of the target, or of a teacher's codes (../distillation.py)

    trainer.py     goes this way, and tells the log (figures.py)
    trl_adapter.py where TRL's trainer is touched
"""
