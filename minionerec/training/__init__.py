"""Training: SFT and GRPO by TRL's trainers; the catalogue model by that of transformers; experts; others."""
