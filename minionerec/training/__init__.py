"""Trainings: SFT, GRPO and DPO on TRL's trainers; catalogue models, TIGER and sequential recommenders on their own."""
