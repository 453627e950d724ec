"""Training: SFT and GRPO by TRL's trainers; S-DPO and the catalogue model by that of transformers; others."""
